// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts from the system, the driver of the GPUs and NCCL, and their way to all ranks. Both libraries are loaded, not
/// linked; types and numbers are those of the driver API, whose binary interface does not change.
#include "distributed/program/collect.hpp"

#include "distributed/program/job.hpp"
#include "distributed/program/machine.hpp"
#include "distributed/program/option_values.hpp"
#include "distributed/transport/nccl_library.hpp"
#include "reference/data/input_error.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace tree_attn {
namespace {

#if defined(TREE_ATTN_CUDA_VERSION)
constexpr std::string_view kArchitectures = TREE_ATTN_CUDA_ARCHITECTURES, kCuda = TREE_ATTN_CUDA_VERSION;
#else
constexpr std::string_view kArchitectures, kCuda;
#endif

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : readable(value);
}

/// A function of a library. @param[out] missing why it is not there
template <class Function>
Function* find(void* library, const char* name, std::string& missing) {
  void* const found = dlsym(library, name);
  if (found == nullptr) missing = dlerror();
  return reinterpret_cast<Function*>(found);
}

using DeviceId = int;
using DeviceUuid = std::array<unsigned char, 16>;

/// As nvidia-smi prints it: GPU-5f0c2e1a-...
std::string uuid_text(const DeviceUuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    std::array<char, 4> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", unsigned{uuid[i]});
    text.append(i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "").append(hex.data());
  }
  return text;
}

/// Why the kernels of this program do not run on a GPU; "" if they do.
std::string missing_kernel(const std::string& gpu, int major, int minor) {
  if (kArchitectures.empty()) return "";
  for (const std::string& one : items_of(std::string(kArchitectures)))
    if (runs_on(one, major, minor)) return "";
  const std::string needed = std::to_string(10 * major + minor) + (major == 9 ? "a-real" : "-real");
  return "built for " + std::string(kArchitectures) + ", the " + gpu + " needs " + needed;
}

/// Asks the driver, libcuda.so.1, about the GPUs that it shows to this process, and about the one of this rank.
void ask_driver(RankFacts& facts, const std::string& devices, int rank, const Topology& machines) {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  constexpr int kNoDevice = 100;           // of a driver that works
  std::string& missing = facts.no_driver;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays loaded
  if (library == nullptr) {
    missing = dlerror();
    return;
  }
  auto* const init = find<int(unsigned)>(library, "cuInit", missing);
  auto* const get_version = find<int(int*)>(library, "cuDriverGetVersion", missing);
  auto* const get_count = find<int(int*)>(library, "cuDeviceGetCount", missing);
  auto* const get = find<int(DeviceId*, int)>(library, "cuDeviceGet", missing);
  auto* const get_name = find<int(char*, int, DeviceId)>(library, "cuDeviceGetName", missing);
  auto* const get_attribute = find<int(int*, int, DeviceId)>(library, "cuDeviceGetAttribute", missing);
  auto* const can_access = find<int(int*, DeviceId, DeviceId)>(library, "cuDeviceCanAccessPeer", missing);
  auto* const get_uuid = find<int(DeviceUuid*, DeviceId)>(library, "cuDeviceGetUuid_v2", missing);
  if (!missing.empty()) return;

  int n = 0, version = 0;
  int status = init(0);
  if (status == 0) status = get_count(&n);
  if (status != 0 && status != kNoDevice) missing = "cuInit: error " + std::to_string(status);
  if (!missing.empty()) return;
  get_version(&version);
  facts.driver = line_of("CUDA ", version / 1000, ".", version % 1000 / 10);

  std::vector<DeviceId> ids(static_cast<std::size_t>(n));
  std::vector<std::string> uuids;
  for (int i = 0; i < n; ++i) {
    DeviceUuid uuid{};
    DeviceId& id = ids[static_cast<std::size_t>(i)];
    if (get(&id, i) != 0 || get_uuid(&uuid, id) != 0) missing = "the driver does not answer for device " + std::to_string(i);
    uuids.push_back(uuid_text(uuid));
  }
  const int own = gpu_of_rank(devices, rank, machines, n);
  if (own < 0)
    facts.no_gpu = n > 0 ? "its machine has " + std::to_string(n)
                         : "the driver shows none (CUDA_VISIBLE_DEVICES is \"" + variable("CUDA_VISIBLE_DEVICES") + "\")";
  if (own < 0 || !missing.empty()) return;

  std::array<char, 256> name{};
  int major = 0, minor = 0;
  const DeviceId id = ids[static_cast<std::size_t>(own)];
  get_name(name.data(), static_cast<int>(name.size()) - 1, id);
  get_attribute(&major, kMajor, id), get_attribute(&minor, kMinor, id);
  facts.gpu = name.data();
  facts.capability = line_of(major, ".", minor);
  facts.uuid = uuids[static_cast<std::size_t>(own)];
  facts.no_kernel = missing_kernel(facts.gpu, major, minor);
  for (int i = 0; i < n; ++i) {
    int can = 0;
    if (i != own && can_access(&can, id, ids[static_cast<std::size_t>(i)]) == 0 && can != 0)
      facts.reaches.push_back(uuids[static_cast<std::size_t>(i)]);
  }
}

/// Tests whether a value of NCCL_SOCKET_IFNAME chooses an interface: a list of prefixes, after = of names, after ^ of those
/// to leave out.
bool chooses(std::string list, std::string_view interface) {
  const bool leaves_out = list.starts_with('^');
  if (leaves_out) list.erase(0, 1);
  const bool is_exact = list.starts_with('=');
  if (is_exact) list.erase(0, 1);
  const std::vector<std::string> names = items_of(list);
  return std::ranges::any_of(names, [&](const std::string& name) {
           return is_exact ? interface == name : interface.starts_with(name);
         }) != leaves_out;
}

/// Loads the library that a decode would load.
void ask_nccl(RankFacts& facts) try {
  const std::shared_ptr<const NcclLibrary> library = NcclLibrary::load();
  facts.nccl_path = library->path(), facts.nccl = library->version_text();
} catch (const InputError& error) {
  // Without the option and the remedy, for which a row of facts names the place.
  const std::string why = error.what();
  facts.no_nccl = why.substr(std::strlen("--transport nccl: "), why.find("; ") - std::strlen("--transport nccl: "));
}

}  // namespace

std::vector<RankFacts> collect_facts(const Ranks& ranks, const Topology& machines, const std::string& devices) {
  ranks.doing("while collecting facts");
  RankFacts facts;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  facts.host = readable(host.data());
  facts.node = machines.node_of(ranks.rank());
  facts.cores = std::to_string(n_allowed_cores());
  facts.interface = bootstrap_interface();
  if (!kCuda.empty()) facts.kernels = std::string(kArchitectures) + ", by CUDA " + std::string(kCuda);
  ask_driver(facts, devices, ranks.rank(), machines);
  ask_nccl(facts);

  // All ranks send as many bytes as the longest text has; a 0 ends each.
  std::string mine = to_text(facts);
  const std::size_t size = ranks.all_max(std::uint64_t{mine.size()}) + 1;
  mine.resize(size);
  std::vector<char> texts(ranks.rank() == 0 ? size * static_cast<std::size_t>(ranks.size()) : 0);
  ranks.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(texts)), "the facts of all ranks");
  std::vector<RankFacts> all;
  for (std::size_t at = 0; at < texts.size(); at += size) all.push_back(facts_of_text(&texts[at]));
  return all;
}

std::string bootstrap_interface() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  const std::string chosen = variable("NCCL_SOCKET_IFNAME");
  std::string best;
  std::size_t best_order = 5;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      const std::string_view name = one->ifa_name;
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || (one->ifa_flags & IFF_UP) == 0) continue;
      const std::size_t order = name.starts_with("ib")       ? 0
                                : name.starts_with("docker") ? 2
                                : name == "lo"               ? 3
                                : name.starts_with("virbr")  ? 4
                                                             : 1;
      if (!chosen.empty() ? !best.empty() || !chooses(chosen, name) : order >= best_order) continue;
      const void* const address = family == AF_INET
                                      ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr)
                                      : &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      std::array<char, INET6_ADDRSTRLEN> text{};
      inet_ntop(family, address, text.data(), text.size());
      best = std::string(name) + " " + text.data();
      best_order = order;
    }
  }
  return best;
}

}  // namespace tree_attn
