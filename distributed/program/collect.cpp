// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts from the system, the driver, the loader and the environment, and their way to all ranks.
#include "tree_attn/distributed/program/collect.hpp"

#include "tree_attn/distributed/job/libraries.hpp"
#include "tree_attn/distributed/program/machine.hpp"
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/reference/data/input_error.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

namespace tree_attn {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Interfaces that are up, with their first address, IPv4 before IPv6.
std::vector<InterfaceFacts> find_interfaces() {
  std::vector<InterfaceFacts> interfaces;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return interfaces;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(all, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || (one->ifa_flags & IFF_UP) == 0) continue;
      if (std::ranges::count(interfaces, std::string(one->ifa_name), &InterfaceFacts::name) > 0) continue;
      const void* const address = family == AF_INET
                                      ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr)
                                      : &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      std::array<char, INET6_ADDRSTRLEN> text{};
      inet_ntop(family, address, text.data(), text.size());
      interfaces.push_back({one->ifa_name, text.data()});
    }
  }
  return interfaces;
}

/// Backends that cannot be used here, as decode says it. What is wrong with a GPU is for judge() to say.
std::vector<std::string> find_missing_backends() {
  std::vector<std::string> missing;
  for (const std::string_view name : backend_names()) {
    if (const Backend* const built = built_backend(name); built != nullptr && built->needs_gpu()) continue;
    try {
      find_backend(name);
    } catch (const InputError& error) {
      missing.emplace_back(error.what());
    }
  }
  return missing;
}

/// Architectures in CMake's notation, "80-real,90a-real". Without "-real" the program has PTX too: "80" becomes "80+PTX".
std::vector<std::string> architectures(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');)
    names.push_back(part.substr(0, part.find('-')) + (part.ends_with("-real") ? "" : "+PTX"));
  return names;
}

/// "13.0.88" as 13000.
int cuda_version(const std::string& text) {
  std::istringstream parts(text);
  int major = 0, minor = 0;
  char dot = '.';
  parts >> major >> dot >> minor;
  return 1000 * major + 10 * minor;
}

/// What this rank finds.
RankFacts find_facts(const Ranks& ranks, const Topology& machines, const std::string& devices) {
  RankFacts facts;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  facts.host = readable(host.data());
  facts.node = machines.node_of(ranks.rank());
  facts.process = static_cast<int>(getpid());
  facts.program = TREE_ATTN_VERSION ", " TREE_ATTN_BUILD_TYPE;
  facts.mpi = mpi_library();
  facts.missing = find_missing_backends();

  facts.cores = allowed_cores();
  facts.container_cores = container_cores().value_or(0);
  struct statvfs memory {};
  if (statvfs("/dev/shm", &memory) == 0)
    facts.shared_memory = static_cast<double>(memory.f_bavail) * static_cast<double>(memory.f_frsize);
  rlimit locked{};
  getrlimit(RLIMIT_MEMLOCK, &locked);
  facts.locked_memory = locked.rlim_cur == RLIM_INFINITY ? -1 : static_cast<double>(locked.rlim_cur);
  std::error_code ignored;
  facts.has_infiniband =
      std::filesystem::directory_iterator("/sys/class/infiniband", ignored) != std::filesystem::directory_iterator();

#if defined(TREE_ATTN_CUDA_VERSION)
  facts.built_cuda = cuda_version(TREE_ATTN_CUDA_VERSION);
  facts.built_for = architectures(TREE_ATTN_CUDA_ARCHITECTURES);
#else
  static_cast<void>(cuda_version), static_cast<void>(architectures);
#endif
  FoundGpus found = find_gpus();
  facts.driver = std::move(found.driver);
  facts.gpus = std::move(found.gpus);
  facts.gpu = gpu_of_rank(devices, ranks.rank(), machines, static_cast<int>(facts.gpus.size()));
  facts.nccl = ask_nccl();
  facts.gpus_may_be_shared = variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  facts.visible_devices = readable(variable("CUDA_VISIBLE_DEVICES"));
  facts.socket_ifname = readable(variable("NCCL_SOCKET_IFNAME"));
  facts.interfaces = find_interfaces();
  return facts;
}

}  // namespace

std::vector<RankFacts> collect_facts(const Ranks& ranks, const Topology& machines, const std::string& devices) {
  ranks.doing("while collecting facts");
  const std::string mine = to_text(find_facts(ranks, machines, devices));
  // All ranks send as many bytes as the longest text has; a 0 ends each.
  const std::size_t size = ranks.all_max(std::uint64_t{mine.size()}) + 1;
  std::string padded = mine;
  padded.resize(size);
  const std::vector<char> all = ranks.all_gather(std::span<const char>(padded), "the facts of all ranks");
  std::vector<RankFacts> facts;
  for (std::size_t at = 0; at < all.size(); at += size) facts.push_back(facts_of_text(&all[at]));
  return facts;
}

std::string bootstrap_interface() {
  RankFacts facts;
  facts.socket_ifname = variable("NCCL_SOCKET_IFNAME");
  facts.interfaces = find_interfaces();
  const InterfaceFacts* const chosen = bootstrap_interface(facts);
  return chosen == nullptr ? "" : chosen->name + " " + chosen->address;
}

void require_possible(const ClusterOptions& options, const Ranks& ranks, const Topology& machines) {
  const Backend* const backend = built_backend(options.backend);
  if (backend == nullptr || !backend->needs_gpu()) return;
  const std::vector<Verdict> verdicts = judge(collect_facts(ranks, machines, options.devices));
  std::vector<Need> needs{Need::kGpu};
  if (options.transport == "nccl") needs.push_back(Need::kNccl);
  if (std::ranges::any_of(chosen_algorithms(options), has_windows)) {
    needs.push_back(Need::kOneShot);
    if (options.windows == "device") needs.push_back(Need::kPeerAccess);
  }
  if (const std::optional<std::string> failure = first_failure(verdicts, needs)) throw InputError(*failure);
}

}  // namespace tree_attn
