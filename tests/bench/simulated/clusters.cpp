// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The networks of the simulated clusters (section 6), loaded by smpirun as a platform.
///
/// A message of S bytes takes latency + S / bandwidth. Messages that share a link share its bandwidth equally. Each GPU has
/// one link into its node and one to the network, in both directions at once. The model has no cost per message at the
/// sender or the receiver, no protocol headers, and no congestion inside a switch.
#include <simgrid/s4u.hpp>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace s4u = simgrid::s4u;
constexpr auto kUp = s4u::LinkInRoute::Direction::UP, kDown = s4u::LinkInRoute::Direction::DOWN;

struct Link {
  double bytes_per_second, seconds;  ///< seconds: of a message without bytes, from GPU to GPU
};

/// A cluster of equal nodes.
struct Cluster {
  const char* name;
  int gpus_per_node, n_nodes;
  Link inside, between;
  std::vector<unsigned> radix{};  ///< a fat tree over the nodes, children per switch from the leaves up; empty: one switch
  double seconds_per_switch_link = 0;  ///< latency that each of its links adds
  bool shares_link = false;            ///< whether the ranks of a node have one link to the network together
};

const Cluster kClusters[] = {
    // The paper's cluster, and more of its nodes: NVLink 4, and one InfiniBand NDR adapter per GPU on one switch.
    {"h100", 8, 512, {450e9, 1.5e-6}, {50e9, 3e-6}},
    // The paper's workstation: two GPUs without peer-to-peer access exchange through host memory over PCIe 4.0 x16.
    {"rtx4090", 2, 1, {25e9, 10e-6}, {25e9, 10e-6}},
    // Three levels of switches without oversubscription: 16 nodes per leaf switch, 16 leaf switches per pod, 2 pods. The
    // routes are fixed by the destination, so flows may meet on a link while another is idle.
    {"fat-tree", 8, 512, {450e9, 1.5e-6}, {50e9, 2e-6}, {16, 16, 2}, 0.25e-6},
    // Processors without GPUs: nodes of 64 ranks, which share one adapter.
    {"processors", 64, 16, {10e9, 1e-6}, {25e9, 3e-6}, {}, 0, true},
};

const Cluster& wanted() {
  const char* const name = std::getenv("TREE_ATTN_CLUSTER");
  for (const Cluster& cluster : kClusters) {
    if (name != nullptr && std::string(name) == cluster.name) return cluster;
  }
  throw std::runtime_error("TREE_ATTN_CLUSTER names no cluster");
}

/// One node: GPUs with a direct route to each other, and a route over their own adapter to the router.
s4u::NetZone* add_node(s4u::NetZone* parent, const Cluster& cluster, int node) {
  s4u::NetZone* const zone = s4u::create_full_zone("node" + std::to_string(node))->set_parent(parent);
  simgrid::kernel::routing::NetPoint* const router = zone->create_router("router" + std::to_string(node));
  struct Gpu {
    s4u::Host* host;
    const s4u::SplitDuplexLink *inside, *between;
  };
  std::vector<Gpu> gpus;
  for (int i = 0; i < cluster.gpus_per_node; ++i) {
    const std::string gpu = "gpu" + std::to_string(node * cluster.gpus_per_node + i);
    // A message passes the links of two GPUs.
    const auto link = [&](const std::string& name, const Link& model) {
      auto* const made = zone->create_split_duplex_link(name, model.bytes_per_second);
      made->set_latency(model.seconds / 2)->seal();
      return made;
    };
    const auto* const between =
        cluster.shares_link && i > 0 ? gpus.front().between : link("between_" + gpu, cluster.between);
    gpus.push_back({zone->create_host(gpu, 1e9), link("inside_" + gpu, cluster.inside), between});
  }
  for (const Gpu& from : gpus) {
    for (const Gpu& to : gpus) {
      if (from.host != to.host)
        zone->add_route(from.host->get_netpoint(), to.host->get_netpoint(), nullptr, nullptr,
                        {{from.inside, kUp}, {to.inside, kDown}}, false);
    }
    zone->add_route(from.host->get_netpoint(), router, nullptr, nullptr, {{from.between, kUp}}, true);
    from.host->seal();
  }
  zone->seal();
  return zone;
}

}  // namespace

extern "C" void load_platform(const s4u::Engine&);
void load_platform(const s4u::Engine&) {
  const Cluster& cluster = wanted();
  if (!cluster.radix.empty()) {
    const std::vector<unsigned>& down = cluster.radix;
    const s4u::FatTreeParams tree(static_cast<unsigned>(down.size()), down, {1, down[0], down[1]}, {1, 1, 1});
    const auto node = [&cluster](s4u::NetZone* zone, const std::vector<unsigned long>&, unsigned long id) {
      s4u::NetZone* const made = add_node(zone, cluster, static_cast<int>(id));
      return std::pair(made->get_netpoint(),
                       s4u::Engine::get_instance()->netpoint_by_name_or_null("router" + std::to_string(id)));
    };
    // One cable carries what all adapters of a node do.
    s4u::create_fatTree_zone("cluster", nullptr, tree, s4u::ClusterCallbacks(node),
                             cluster.gpus_per_node * cluster.between.bytes_per_second, cluster.seconds_per_switch_link,
                             s4u::Link::SharingPolicy::SPLITDUPLEX)
        ->seal();
    return;
  }
  s4u::NetZone* const root = s4u::create_star_zone("cluster");
  for (int node = 0; node < cluster.n_nodes; ++node) {
    s4u::NetZone* const zone = add_node(root, cluster, node);
    root->add_route(zone->get_netpoint(), nullptr,
                    s4u::Engine::get_instance()->netpoint_by_name_or_null("router" + std::to_string(node)), nullptr,
                    std::vector<s4u::LinkInRoute>{}, true);
  }
  root->seal();
}
