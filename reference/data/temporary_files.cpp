// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of temporary files, and the signal handler.
#include "tree_attn/reference/data/temporary_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <mutex>

namespace tree_attn {
namespace {

/// A path that ends with a zero, copied in advance because a signal handler may not allocate.
struct Entry {
  std::atomic<bool> used = false;
  std::array<char, PATH_MAX> path{};
};

std::array<Entry, 8> entries;
std::mutex changing;  // held to change an entry; the handler reads without locking

void remove_and_end(int signal_number) {
  remove_temporary_files();
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

}  // namespace

void remember_temporary_file(const std::string& path) {
  const std::lock_guard lock(changing);
  const auto entry = std::find_if(entries.begin(), entries.end(), [](const Entry& e) { return !e.used; });
  if (entry == entries.end() || path.size() >= entry->path.size()) return;
  entry->path[path.copy(entry->path.data(), path.size())] = '\0';
  entry->used = true;
}

void forget_temporary_file(const std::string& path) {
  const std::lock_guard lock(changing);
  for (Entry& entry : entries) {
    if (entry.used && path == entry.path.data()) entry.used = false;
  }
}

void remove_temporary_files() {
  for (const Entry& entry : entries) {
    if (entry.used) ::unlink(entry.path.data());
  }
}

void remove_temporary_files_on_signals() {
  for (const int ending : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(ending, remove_and_end) == SIG_IGN) std::signal(ending, SIG_IGN);
  }
}

}  // namespace tree_attn
