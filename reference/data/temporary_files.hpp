// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Temporary files that are removed also if their process ends without destructors.
#pragma once

#include <string>

namespace tree_attn {

/// Adds a path to those that remove_temporary_files() removes, of which there are at most 8; further ones are ignored.
void remember_temporary_file(const std::string& path);

/// Takes a path from the list: the file was removed, or is about to be renamed.
void forget_temporary_file(const std::string& path);

/// Removes the files of the list. Async-signal-safe: to be called before _exit() and in signal handlers.
void remove_temporary_files();

/// Installs a handler of SIGINT, SIGTERM and SIGHUP that removes the files and then ends the process by the signal. A signal
/// that is ignored, as SIGHUP under nohup, stays ignored.
void remove_temporary_files_on_signals();

}  // namespace tree_attn
