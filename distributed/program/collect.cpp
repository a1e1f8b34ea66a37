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
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
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
/// @returns its device, or -1
int ask_driver(RankFacts& facts, std::span<const int> devices, int rank, const Topology& machines) {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  constexpr int kNoDevice = 100;           // of a driver that works
  std::string& missing = facts.no_driver;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays loaded
  if (library == nullptr) {
    missing = dlerror();
    return -1;
  }
  auto* const init = find<int(unsigned)>(library, "cuInit", missing);
  auto* const get_version = find<int(int*)>(library, "cuDriverGetVersion", missing);
  auto* const get_count = find<int(int*)>(library, "cuDeviceGetCount", missing);
  auto* const get = find<int(DeviceId*, int)>(library, "cuDeviceGet", missing);
  auto* const get_name = find<int(char*, int, DeviceId)>(library, "cuDeviceGetName", missing);
  auto* const get_attribute = find<int(int*, int, DeviceId)>(library, "cuDeviceGetAttribute", missing);
  auto* const can_access = find<int(int*, DeviceId, DeviceId)>(library, "cuDeviceCanAccessPeer", missing);
  auto* const get_uuid = find<int(DeviceUuid*, DeviceId)>(library, "cuDeviceGetUuid_v2", missing);
  if (!missing.empty()) return -1;

  int n = 0, version = 0;
  int status = init(0);
  if (status == 0) status = get_count(&n);
  if (status != 0 && status != kNoDevice) missing = "cuInit: error " + std::to_string(status);
  if (!missing.empty()) return -1;
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
  if (own < 0 || !missing.empty()) return -1;

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
  return id;
}

/// As CUDA gives it to other processes: plain bytes.
struct IpcHandle {
  std::array<char, 64> bytes;
};

/// Memory of a GPU that other processes open, by the driver API.
class GpuMemory {
 public:
  /// @param[out] missing what fails, and with which status
  GpuMemory(DeviceId id, std::string& missing) : missing_(missing), library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!call<int(void**, DeviceId)>("cuDevicePrimaryCtxRetain", &context_, id)) return;
    id_ = id;
    if (!call<int(void*)>("cuCtxSetCurrent", context_)) return;
    constexpr std::size_t kBytes = 2 << 20;  // which no other allocation shares
    if (call<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2", &memory_, kBytes))
      call<int(IpcHandle*, std::uint64_t)>("cuIpcGetMemHandle", &handle_, memory_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory() {
    if (memory_ != 0) call<int(std::uint64_t)>("cuMemFree_v2", memory_);
    if (context_ != nullptr) call<int(DeviceId)>("cuDevicePrimaryCtxRelease_v2", id_);
  }
  const IpcHandle& handle() const { return handle_; }
  /// Maps the memory of another process, and takes it back.
  void try_to_open(const IpcHandle& other) {
    constexpr unsigned kLazyPeerAccess = 1;
    std::uint64_t opened = 0;
    if (call<int(std::uint64_t*, IpcHandle, unsigned)>("cuIpcOpenMemHandle_v2", &opened, other, kLazyPeerAccess))
      call<int(std::uint64_t)>("cuIpcCloseMemHandle", opened);
  }

 private:
  template <class Function, class... Arguments>
  bool call(const char* name, Arguments... arguments) {
    std::string none;
    auto* const function = find<Function>(library_, name, none);
    const int status = function == nullptr ? -1 : function(arguments...);
    if (status != 0 && missing_.empty()) missing_ = function == nullptr ? none : line_of(name, ": error ", status);
    return status == 0;
  }

  std::string& missing_;
  void* library_;  // stays loaded
  void* context_ = nullptr;
  DeviceId id_ = 0;
  std::uint64_t memory_ = 0;
  IpcHandle handle_{};
};

/// Opens memory of the next rank of this machine: pages of a file without a name, and, if it is another process, has a GPU
/// and this one reaches it, memory of that GPU. Collective.
void ask_neighbour(RankFacts& facts, const Ranks& ranks, const Topology& machines, int device) {
  struct Offer {
    std::int64_t process, file;
    bool has_gpu;
    std::array<char, 64> uuid;
    IpcHandle memory;
  };
  const auto& node = machines.node(facts.node);
  const auto own = static_cast<std::size_t>(std::ranges::find(node, ranks.rank()) - node.begin());
  const int next = node[(own + 1) % node.size()];
  Offer mine{};
  const int file = memfd_create("tree_attn info", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, 1) != 0) facts.no_memfd = std::string("memfd_create: ") + std::strerror(errno);
  mine.file = file;
  mine.process = getpid();
  facts.uuid.copy(mine.uuid.data(), mine.uuid.size() - 1);
  std::optional<GpuMemory> memory;
  const std::vector<std::int64_t> processes = ranks.all_gather(mine.process, "the processes of all ranks");
  const bool is_alone =
      std::ranges::all_of(node, [&](int rank) { return processes[static_cast<std::size_t>(rank)] == mine.process; });
  if (!is_alone && !facts.uuid.empty()) mine.memory = memory.emplace(device, facts.no_ipc).handle();
  mine.has_gpu = memory.has_value() && facts.no_ipc.empty();
  const Offer theirs = ranks.all_gather(mine, "memory of all ranks")[static_cast<std::size_t>(next)];
  const std::string path = "/proc/" + std::to_string(theirs.process) + "/fd/" + std::to_string(theirs.file);
  if (const int opened = theirs.file < 0 ? -1 : open(path.c_str(), O_RDWR | O_CLOEXEC); opened >= 0)
    close(opened);
  else if (theirs.file >= 0 && facts.no_memfd.empty())
    facts.no_memfd = path + " of rank " + std::to_string(next) + ": " + std::strerror(errno);
  const std::string uuid = theirs.uuid.data();
  if (mine.has_gpu && theirs.has_gpu && theirs.process != mine.process &&
      (uuid == facts.uuid || std::ranges::count(facts.reaches, uuid) > 0))
    memory->try_to_open(theirs.memory);
  ranks.barrier();  // memory is there until all have opened it
  if (file >= 0) close(file);
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
  // Without the option and the remedy, which a row of facts names in the book.
  const std::string why = error.what();
  facts.no_nccl = why.substr(std::strlen("--transport nccl: "), why.find("; ") - std::strlen("--transport nccl: "));
}

}  // namespace

std::vector<RankFacts> collect_facts(const Ranks& ranks, const Topology& machines, std::span<const int> devices) {
  ranks.doing("while collecting facts");
  RankFacts facts;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  facts.host = readable(host.data());
  facts.node = machines.node_of(ranks.rank());
  facts.cores = std::to_string(n_allowed_cores());
  facts.interface = bootstrap_interface();
  if (!kCuda.empty()) facts.kernels = std::string(kArchitectures) + ", by CUDA " + std::string(kCuda);
  const int device = ask_driver(facts, devices, ranks.rank(), machines);
  ask_nccl(facts);
  ask_neighbour(facts, ranks, machines, device);

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

std::string gpu_identity(std::span<const int> devices, int rank, const Topology& machines) {
  RankFacts facts;
  ask_driver(facts, devices, rank, machines);
  return facts.uuid;
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
