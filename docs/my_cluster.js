// SPDX-License-Identifier: Apache-2.0
// "Does it pay on my cluster": the time of a decode step by every algorithm, as `tree_attn predict` has it. Plans are written and walked
// through as in the C++: ranges and subtrees (reference/state), schedules (distributed/exchange/exchange.hpp, plan_builder.cpp), the
// algorithms (distributed/exchange), and the model (distributed/exchange/step_time.cpp). tests/docs/test_my_cluster.py compares the times.

const StepTimes = (() => {
  // ---- Ranges of positions and their subtrees: reference/state/subtree.hpp, key_range.hpp, slots.hpp. A subtree is {begin, size}.
  const kLeafKeys = 64, kPositionBits = 46, kDealtBits = 12;
  const isPowerOfTwo = n => Number.isInteger(Math.log2(n));
  const ceilLog2 = n => Math.ceil(Math.log2(n));

  function cover(begin, end) {
    const subtrees = [];
    while (begin < end) {
      let size = 1;
      while (begin % (2 * size) === 0 && begin + 2 * size <= end) size *= 2;
      subtrees.push({begin, size});
      begin += size;
    }
    return subtrees;
  }

  function contiguousRanges(nKeys, p) {
    let unit = kLeafKeys;
    while (unit <= Math.floor(Math.floor(nKeys / p) / 16)) unit *= 2;
    const nUnits = Math.ceil(nKeys / unit), ranges = [];
    for (let r = 0, before = 0; r < p; ++r) {
      const n = Math.floor(nUnits / p) + (r < nUnits % p ? 1 : 0);
      ranges.push({begin: Math.min(nKeys, before * unit), end: Math.min(nKeys, (before + n) * unit)});
      before += n;
    }
    return ranges;
  }

  const ownerBits = p => (isPowerOfTwo(p) ? ceilLog2(p) : Math.min(kDealtBits, ceilLog2(p) + 4));
  function dealtRanges(p) {
    const b = ownerBits(p), cut = r => Math.floor((r * 2 ** b + p - 1) / p) * 2 ** (kPositionBits - b);
    return Array.from({length: p}, (_, r) => ({begin: cut(r), end: cut(r + 1)}));
  }

  /// The keys that every rank holds: OwnedLeaves::n_keys().
  function shardLengths(ranges, nKeys, dealt) {
    if (!dealt) return ranges.map(({begin, end}) => Math.max(0, Math.min(nKeys, end) - begin));
    const b = ownerBits(ranges.length), period = 2 ** b, nFull = Math.floor(nKeys / kLeafKeys), lengths = ranges.map(() => 0);
    for (let residue = 0; residue < period; ++residue) {
      let top = 0;
      for (let i = 0; i < b; ++i) top = top * 2 + (Math.floor(residue / 2 ** i) % 2);
      const owner = Math.floor(top * ranges.length / period), leaves = Math.floor(nFull / period) + (residue < nFull % period ? 1 : 0);
      lengths[owner] += leaves * kLeafKeys + (residue === nFull % period ? nKeys % kLeafKeys : 0);
    }
    return lengths;
  }

  // ---- Schedules: distributed/exchange/exchange.hpp. A step is {peer, sends, receives, finished, theirs: [begin, end)}.
  function butterfly(size, me) {
    const m = 2 ** Math.floor(Math.log2(size)), extra = size - m, steps = [];
    if (me < 2 * extra && me % 2 === 0) {
      return [{peer: me + 1, sends: true}, {peer: me + 1, receives: true, finished: true, theirs: [0, size]}];
    }
    if (me < 2 * extra) steps.push({peer: me - 1, receives: true, theirs: [me - 1, me]});
    const member = j => (j < extra ? 2 * j + 1 : j + extra), first = j => (j < extra ? 2 * j : j + extra);
    const player = me < 2 * extra ? (me - 1) / 2 : me - extra;
    for (let block = 1; block < m; block *= 2) {
      const other = player ^ block, start = Math.floor(other / block) * block;
      steps.push({peer: member(other), sends: true, receives: true, theirs: [first(start), first(start + block)]});
    }
    if (me < 2 * extra) steps.push({peer: me - 1, sends: true});
    return steps;
  }

  function reduceToFirst(size, me) {
    const steps = [];
    for (let distance = 1; distance < size; distance *= 2) {
      if (me & distance) {
        steps.push({peer: me - distance, sends: true});
        break;
      }
      if (me + distance < size) steps.push({peer: me + distance, receives: true, theirs: [me + distance, Math.min(me + 2 * distance, size)]});
    }
    return steps;
  }
  const broadcastFromFirst = (size, me) =>
      reduceToFirst(size, me).reverse().map(({peer, sends, receives}) => ({peer, sends: receives, receives: sends}));

  // ---- The rounds of one rank: plan_builder.cpp without the blocks. A forest is a list of subtrees.
  class Rounds {
    /// @param rowBytes bytes of a state of one row, rows of all states unless they are sliced
    constructor(step) {
      this.step = step;
      this.rows = step.nRows;
      this.rounds = [{sends: [], receives: [], decoded: 0, merges: 0}];
    }
    get last() { return this.rounds[this.rounds.length - 1]; }
    get stateBytes() { return 4 * this.rows * (this.step.d + 2); }
    exchange() { this.rounds.push({sends: [], receives: [], decoded: 0, merges: 0}); }
    send(peer, bytes) { if (bytes > 0) this.last.sends.push({peer, bytes}); }
    receive(peer, bytes) { if (bytes > 0) this.last.receives.push({peer, bytes}); }
    sendForest(peer, forest) { this.send(peer, forest.length * this.stateBytes); }
    receiveForest(peer, begin, end) {
      const forest = this.step.coverOf(begin, end);
      this.receive(peer, forest.length * this.stateBytes);
      return forest;
    }
    join(forests) {
      const joined = [];
      for (const forest of forests) {
        for (const subtree of forest) {
          joined.push(subtree);
          for (let n = joined.length; n >= 2; n = joined.length) {
            const left = joined[n - 2], right = joined[n - 1];
            if (left.size !== right.size || left.begin % (2 * left.size) !== 0 || left.begin + left.size !== right.begin) break;
            joined.splice(n - 2, 2, {begin: left.begin, size: 2 * left.size});
            ++this.last.merges;
          }
        }
      }
      return joined;
    }
    root(forest) { this.last.merges += Math.max(0, forest.length - 1); }

    /// @param bytes of the operand of every rank
    allReduce(p, me, bytes) {
      for (const step of butterfly(p, me)) {
        this.exchange();
        if (step.receives) this.receive(step.peer, bytes);
        if (step.sends) this.send(step.peer, bytes);
        if (step.receives && !step.finished) ++this.last.merges;
      }
    }
    /// @param members {ranks, ranges, me}
    reduce({ranks, ranges, me}, steps, mine) {
      for (const step of steps) {
        this.exchange();
        if (step.sends) this.sendForest(ranks[step.peer], mine);
        if (!step.receives) continue;
        const theirs = this.receiveForest(ranks[step.peer], ranges[step.theirs[0]].begin, ranges[step.theirs[1] - 1].end);
        mine = step.finished ? theirs : this.join(step.peer < me ? [theirs, mine] : [mine, theirs]);
      }
      return mine;
    }
    /// @param units unit u is members [units[u], units[u + 1])
    joinBlocks(members, units, radix, mine) {
      const n = units.length - 1, own = units.findIndex((end, u) => u > 0 && members.me < end) - 1;
      for (let width = 1; width < n; width *= radix) {
        const first = Math.floor(own / (width * radix)) * (width * radix), end = Math.min(first + width * radix, n), bounds = [];
        for (let unit = first; unit < end; unit += width) bounds.push(units[unit]);
        mine = this.joinNeighbours(members, [...bounds, units[end]], mine);
      }
      return mine;
    }
    joinNeighbours({ranks, ranges, me}, bounds, mine) {
      const n = bounds.length - 1;
      if (n === 1) return mine;
      this.exchange();
      const own = bounds.findIndex((end, b) => b > 0 && me < end) - 1, place = me - bounds[own], ownSize = bounds[own + 1] - bounds[own];
      const forests = new Array(n);
      for (let distance = 1; distance < n; ++distance) {
        const from = (own + n - distance) % n, begin = bounds[from], end = bounds[from + 1];
        forests[from] = this.receiveForest(ranks[begin + place % (end - begin)], ranges[begin].begin, ranges[end - 1].end);
      }
      for (let distance = 1; distance < n; ++distance) {
        const to = (own + distance) % n;
        for (let j = bounds[to] + place; j < bounds[to + 1]; j += ownSize) this.sendForest(ranks[j], mine);
      }
      forests[own] = mine;
      return this.join(forests);
    }
    /// Joins the nodes, and merges what is left.
    joinNodes({nodes, ranges, p}, me, radix, mine) {
      this.root(this.joinBlocks({ranks: upTo(p - 1), ranges, me}, [...nodes.map(each => each[0]), p], radix, mine));
    }
  }

  // ---- The algorithms: distributed/exchange. Each returns the rounds of rank me after the decode of its own shard.
  const upTo = n => Array.from({length: n + 1}, (_, i) => i);
  const rowsOfSlice = (nRows, i, n) => Math.floor(nRows * (i + 1) / n) - Math.floor(nRows * i / n);

  function nRounds(n, k) {
    let rounds = 0;
    for (let joined = 1; joined < n; joined *= k) ++rounds;
    return rounds;
  }
  function defaultRadix(link, overhead, nNodes, bytes) {
    const perMessage = bytes / link.bytesPerUs + 2 * overhead;
    let best = 2, least = Infinity;
    for (let k = 2;; k *= 2) {
      k = Math.min(k, Math.max(nNodes, 2));
      const time = nRounds(nNodes, k) * (link.latency + (k - 1) * perMessage);
      if (time < least) least = time, best = k;
      if (k >= nNodes) return best;
    }
  }
  /// What two-level decides once for all ranks: slices of the rows, and the radix.
  function twoLevelChoice(step) {
    const {nodes, nodeRanges, ranges, nRows, d, p} = step;
    const longest = Math.max(...ranges.map(each => step.coverOf(each.begin, each.end).length), ...nodeRanges.map(each => step.coverOf(each.begin, each.end).length));
    return choiceFor(step, longest * nRows * (d + 2) * 4);
  }
  function choiceFor({nodes, p, radix, network: {between, overhead}}, bytes) {
    const alike = nodes.every(node => node.length === nodes[0].length), slices = p > 2 && alike && bytes > 32 * 1024 ? nodes[0].length : 1;
    return {slices, radix: radix || defaultRadix(between, overhead, nodes.length, bytes / slices)};
  }
  /// The slice of a rank over all nodes, and then the output of the others of its node.
  function joinSlices({nodes, nodeRanges, nRows, d, nodeOf}, me, radix, plan, forest) {
    const node = nodeOf(me), ranks = nodes[node], n = ranks.length, place = me - ranks[0], sliceRows = i => rowsOfSlice(nRows, i, n);
    plan.root(plan.joinBlocks({ranks: nodes.map(each => each[place]), ranges: nodeRanges, me: node}, upTo(nodes.length), radix, forest));
    plan.exchange();
    for (let distance = 1; distance < n; ++distance) {
      const from = (place + n - distance) % n, to = (place + distance) % n;
      plan.receive(ranks[from], 4 * sliceRows(from) * (d + 1));
      plan.send(ranks[to], 4 * sliceRows(place) * (d + 1));
    }
  }
  function twoLevel(step, me, plan) {
    const {slices, radix} = step.choice || (step.choice = twoLevelChoice(step)), {nodes, ranges, nRows, d, p} = step;
    const node = step.nodeOf(me), ranks = nodes[node], first = ranks[0], n = ranks.length, own = step.coverOf(ranges[me].begin, ranges[me].end);
    if (slices > 1) {
      // The ranks of a node share the rows, each joins its slice over all nodes, and they gather the output.
      const place = me - first, sliceRows = i => rowsOfSlice(nRows, i, n);
      plan.exchange();
      plan.rows = sliceRows(place);
      const forests = new Array(n);
      for (let distance = 1; distance < n; ++distance) {
        const from = (place + n - distance) % n, to = (place + distance) % n;
        forests[from] = plan.receiveForest(ranks[from], ranges[first + from].begin, ranges[first + from].end);
        plan.send(ranks[to], own.length * 4 * sliceRows(to) * (d + 2));
      }
      forests[place] = own;
      return joinSlices(step, me, radix, plan, plan.join(forests));
    }
    const longest = Math.max(...ranks.map(rank => step.coverOf(ranges[rank].begin, ranges[rank].end).length));
    const nodeRadix = defaultRadix(step.network.inside, step.network.overhead, n, longest * plan.stateBytes);
    plan.joinNodes(step, me, radix, plan.joinBlocks({ranks: upTo(p - 1), ranges, me}, upTo(n).map(i => first + i), nodeRadix, own));
  }

  /// Kernels store packets of 16 bytes, three floats in each: gpu/engine/peers.hpp.
  const kMostOneShotRanks = 16, kMostOneShotBytes = 128 * 1024;
  /// whole_leaves() of reference/state/subtree.hpp.
  const wholeLeaves = ({begin, end}) => [begin, end].map(at => Math.ceil(at / kLeafKeys) * kLeafKeys);
  function oneShot(step, me, plan) {
    const {ranges, nRows, d} = step, forests = ranges.map(range => step.coverOf(...wholeLeaves(range)));
    // One without keys stores one packet for every row.
    const bytesOf = i => 16 * nRows * Math.max(1, forests[i].length * Math.ceil((d + 2) / 3));
    plan.exchange();
    plan.last.isStored = true;
    ranges.forEach((_, peer) => { if (peer !== me) plan.send(peer, bytesOf(me)), plan.receive(peer, bytesOf(peer)); });
    plan.root(plan.join(forests));
  }
  /// Its kernels reach one node, and are for few ranks and few rows: refusal() in distributed/exchange/one_shot.cpp.
  const takesOneShot = ({keys, batch, heads, headDim, ranks, perNode, dealt}) =>
      !dealt && ranks <= perNode && ranks <= kMostOneShotRanks &&
      contiguousRanges(keys, ranks).every(range => cover(...wholeLeaves(range)).length * 4 * batch * heads * (headDim + 2) <= kMostOneShotBytes);

  function leaders(step, me, plan) {
    const {nodes, nodeRanges, ranges, nRows, d} = step, node = step.nodeOf(me), ranks = nodes[node], n = ranks.length, place = me - ranks[0];
    let forest = step.coverOf(ranges[me].begin, ranges[me].end);
    if (n > 1) forest = plan.reduce({ranks, ranges: ranks.map(rank => ranges[rank]), me: place}, reduceToFirst(n, place), forest);
    if (place === 0) {
      if (nodes.length > 1) forest = plan.reduce({ranks: nodes.map(each => each[0]), ranges: nodeRanges, me: node}, butterfly(nodes.length, node), forest);
      plan.root(forest);
    }
    if (n === 1) return;
    for (const {peer, sends, receives} of broadcastFromFirst(n, place)) {
      plan.exchange();
      if (receives) plan.receive(ranks[peer], 4 * nRows * (d + 1));
      if (sends) plan.send(ranks[peer], 4 * nRows * (d + 1));
    }
  }

  const allReduces = vectorsAndScalars => (step, me, plan) => {
    for (const [vectors, scalars] of vectorsAndScalars) plan.allReduce(step.p, me, 4 * step.nRows * (vectors * step.d + scalars));
  };

  function gather(step, me, plan) {
    const {p, ranges} = step, at = i => ranges[(me + i) % p], sizes = Array.from({length: p}, (_, i) => step.coverOf(at(i).begin, at(i).end).length);
    const bytes = (begin, end) => sizes.slice(begin, end).reduce((sum, n) => sum + n, 0) * plan.stateBytes;
    for (let held = 1; held < p; held *= 2) {
      const n = Math.min(held, p - held);
      plan.exchange();
      plan.send((me + p - held) % p, bytes(0, n));
      plan.receive((me + held) % p, bytes(held, held + n));
    }
    plan.last.merges += step.mergesOfAll();
  }

  function ringState(step, me, plan) {
    const {p} = step;
    for (let hop = 0; hop + 1 < p; ++hop) {
      plan.exchange();
      plan.send((me + 1) % p, step.forestSizes()[(me + p - hop) % p] * plan.stateBytes);
      plan.receive((me + p - 1) % p, step.forestSizes()[(me + 2 * p - hop - 1) % p] * plan.stateBytes);
    }
    plan.last.merges += step.mergesOfAll();
  }

  function ring(step, me, plan) {
    const {p, shards, keyBytes} = step;
    plan.rounds = [];
    for (let hop = 0; hop < p; ++hop) {
      const here = (me + p - hop) % p, next = (me + 2 * p - hop - 1) % p;
      plan.exchange();
      plan.last.decoded = shards[here] * 2 * keyBytes;
      if (hop + 1 === p) break;
      // Keys, then values.
      for (const _ of [0, 1]) plan.send((me + 1) % p, shards[here] * keyBytes), plan.receive((me + p - 1) % p, shards[next] * keyBytes);
    }
    plan.last.merges = step.mergesOfAll();
  }

  const algorithms = {
    "two-level": twoLevel, leaders, paper: allReduces([[0, 1], [1, 0], [0, 1]]), packed: allReduces([[0, 1], [1, 1]]),
    fused: allReduces([[1, 2]]), gather, ring, "ring-state": ringState, "one-shot": oneShot,
  };
  /// The algorithms that take a problem.
  const namesFor = problem => Object.keys(algorithms).filter(name => name !== "one-shot" || takesOneShot(problem));

  /// All that plans are written for.
  /// @param problem {keys, heads, kvHeads, headDim, elementBytes, batch, ranks, perNode, radix (0: default), dealt}
  /// @param cluster {inside, between: {latency, bytesPerUs}, overhead, memoryBytesPerUs, mergeUs, storeUs}; us and bytes
  function stepOf(problem, cluster) {
    const p = problem.ranks, ranges = problem.dealt ? dealtRanges(p) : contiguousRanges(problem.keys, p), covers = new Map();
    const nodes = [];
    for (let rank = 0; rank < p; ++rank) (nodes[Math.floor(rank / problem.perNode)] ||= []).push(rank);
    const coverOf = (begin, end) => {
      const key = begin * 3 + end;  // sums of two ends of ranges that differ are rare; the check below makes them harmless
      const found = covers.get(key);
      if (found && found.begin === begin && found.end === end) return found.forest;
      const forest = cover(begin, end);
      covers.set(key, {begin, end, forest});
      return forest;
    };
    let merges, sizes;
    return {
      p, ranges, nodes, coverOf, network: cluster, radix: problem.radix || 0, nRows: problem.batch * problem.heads, d: problem.headDim,
      nodeOf: rank => Math.floor(rank / problem.perNode),
      nodeRanges: nodes.map(node => ({begin: ranges[node[0]].begin, end: ranges[node[node.length - 1]].end})),
      shards: shardLengths(ranges, problem.keys, problem.dealt),
      keyBytes: problem.batch * problem.kvHeads * problem.headDim * problem.elementBytes,
      forestSizes: () => (sizes ||= ranges.map(({begin, end}) => coverOf(begin, end).length)),
      // Joining the forests of all ranks merges all of their subtrees into one state.
      mergesOfAll() { return (merges ??= Math.max(0, this.forestSizes().reduce((sum, n) => sum + n, 0) - 1)); },
    };
  }

  /// The rounds of every rank.
  function roundsOf(name, step) {
    return Array.from({length: step.p}, (_, me) => {
      const plan = new Rounds(step);
      if (name !== "ring") plan.last.decoded = step.shards[me] * 2 * step.keyBytes;
      algorithms[name](step, me, plan);
      return plan.rounds;
    });
  }

  /// Walks through the rounds of all ranks: step_time.cpp. @returns us
  function walk(rounds, step, cluster) {
    const links = [cluster.inside, cluster.between], crosses = (a, b) => (step.nodeOf(a) === step.nodeOf(b) ? 0 : 1);
    const latencyOf = (round, port) => (round.isStored ? cluster.storeUs : links[port].latency), overheadOf = round => (round.isStored ? 0 : cluster.overhead);
    const ranks = rounds.map(() => ({round: 0, hasSent: false, isQueued: true, now: 0, sending: [0, 0], receiving: [0, 0], arrived: [], inbox: new Map()}));
    const queue = ranks.map((_, me) => me);

    function send(me, round) {
      const rank = ranks[me], wasSending = [...rank.sending], leavesAt = i => rank.now + i * overheadOf(round);
      round.sends.forEach(({peer, bytes}, i) => {
        const port = crosses(me, peer);
        rank.sending[port] = Math.max(rank.sending[port], leavesAt(i)) + bytes / links[port].bytesPerUs;
      });
      round.sends.forEach(({peer}, i) => {
        const port = crosses(me, peer), latency = latencyOf(round, port), {inbox} = ranks[peer];
        if (!inbox.has(me)) inbox.set(me, []);
        inbox.get(me).push({port, bytes: round.sends[i].bytes, beginsAt: Math.max(wasSending[port], leavesAt(i)) + latency, endsAt: rank.sending[port] + latency});
        if (!ranks[peer].isQueued) ranks[peer].isQueued = true, queue.push(peer);
      });
      rank.now = leavesAt(round.sends.length) + round.decoded / cluster.memoryBytesPerUs;
      for (const {peer} of round.isStored ? [] : round.sends) {
        const port = crosses(me, peer);
        rank.now = Math.max(rank.now, rank.sending[port] + links[port].latency);
      }
      rank.hasSent = true;
    }
    /// @returns false if a message is missing
    function finishRound(me) {
      const rank = ranks[me], round = rounds[me][rank.round];
      if (!rank.hasSent) send(me, round);
      while (rank.arrived.length < round.receives.length) {
        const {peer, bytes} = round.receives[rank.arrived.length], sent = rank.inbox.get(peer);
        if (!sent || sent.length === 0) return false;
        if (sent[0].bytes !== bytes) throw new Error(`rank ${peer} sends ${sent[0].bytes} bytes to rank ${me}, which expects ${bytes}`);
        rank.arrived.push(sent.shift());
      }
      rank.arrived.sort((a, b) => a.beginsAt - b.beginsAt);
      for (const {port, bytes, beginsAt, endsAt} of rank.arrived) {
        rank.receiving[port] = Math.max(rank.receiving[port], beginsAt) + bytes / links[port].bytesPerUs;
        rank.now = Math.max(rank.now, rank.receiving[port], endsAt);
      }
      rank.now += round.receives.length * overheadOf(round) + round.merges * cluster.mergeUs;
      rank.arrived = [];
      rank.hasSent = false;
      ++rank.round;
      return true;
    }
    while (queue.length > 0) {
      const me = queue.pop();
      ranks[me].isQueued = false;
      while (ranks[me].round < rounds[me].length && finishRound(me)) {}
    }
    ranks.forEach((rank, me) => {
      if (rank.round < rounds[me].length) throw new Error(`rank ${me} waits for a message that no rank sends`);
    });
    return Math.max(...ranks.map(rank => rank.now));
  }

  /// The time of a step in us.
  function stepTime(name, problem, cluster) {
    const step = stepOf(problem, cluster);
    return walk(roundsOf(name, step), step, cluster);
  }

  return {namesFor, stepTime};
})();

if (typeof module !== "undefined") module.exports = StepTimes;

if (typeof document !== "undefined" && typeof myClusterFacts !== "undefined") {
  const place = document.getElementById("my_cluster"), {presets} = myClusterFacts;
  const kPowers = [1, 2, 4, 8, 16, 32, 64, 128], kKeys = Array.from({length: 15}, (_, i) => 1250 * 2 ** i), kGpus = [1, 2, 4, 8, 16, 32, 64, 128, 256];
  // name, words, unit, values. Bandwidths are in GB/s, latencies in us.
  const kSliders = [
    ["keys", "keys N", "", kKeys], ["ranks", "GPUs", "", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 36, 48, 64, 72, 96, 128, 144, 192, 256]],
    ["perNode", "GPUs per node", "", [1, 2, 4, 6, 8, 16, 18, 32, 36, 64, 72]], ["batch", "batch", "", kPowers],
    ["heads", "query heads", "", kPowers], ["kvHeads", "key/value heads", "", kPowers], ["headDim", "head size", "", [40, 64, 80, 96, 128, 192, 256]],
    ["inside", "bandwidth in node", "GB/s", [1, 3, 5, 10, 16, 25, 32, 50, 64, 100, 150, 200, 300, 450, 600, 900]],
    ["between", "bandwidth between", "GB/s", [0.1, 0.3, 1, 1.25, 2.5, 3, 5, 6.25, 10, 12.5, 25, 50, 100]],
    ["insideUs", "latency in node", "us", [0, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20]],
    ["betweenUs", "latency between", "us", [0.5, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50]],
    ["overhead", "cost of a message", "us", [0, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2]],
    ["memory", "memory of a GPU", "GB/s", [50, 100, 200, 400, 600, 900, 1008, 1500, 2000, 3000, 4000, 4660, 6000, 8000]],
  ];
  const kChoices = [["elementBytes", "type", [[2, "BF16, F16"], [4, "F32"]]], ["dealt", "order", [[0, "contiguous"], [1, "dealt"]]], ["axis", "curves over", [["keys", "keys"], ["ranks", "GPUs"]]]];
  const kStoreUs = 0.6;  // a store into another GPU, as predict assumes it; not measured
  const kLooks = {"two-level": ["a", ""], "one-shot": ["a", "12 3 2 3"], leaders: ["a", "7 4"], gather: ["a", "2 3"], fused: ["c", ""], packed: ["c", "7 4"], paper: ["b", ""], "ring-state": ["d", "2 3"], ring: ["d", ""]};
  let chosen = {...presets[0].values, axis: "keys"}, preset = presets[0], run = 0;

  const svg = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const node = (name, text, kind) => Object.assign(document.createElement(name), {textContent: text, className: kind || ""});
  const amount = n => (n >= 1e6 ? `${+(n / 1e6).toPrecision(4)}M` : n >= 1e4 ? `${+(n / 1e3).toPrecision(4)}k` : `${n}`);
  const time = us => (us >= 1e6 ? `${(us / 1e6).toPrecision(3)} s` : us >= 1000 ? `${(us / 1000).toPrecision(3)} ms` : us >= 100 ? `${us.toFixed(0)} µs` : `${us.toFixed(1)} µs`);

  const ratio = n => (n >= 100 ? n.toFixed(0) : n.toPrecision(3));

  // The model's words for what is chosen. Heads are powers of two, so fewer key/value heads always divide the query heads.
  const problemOf = at => ({...at, kvHeads: Math.min(at.kvHeads, at.heads), perNode: Math.min(at.perNode, at.ranks), radix: 0, dealt: Boolean(Number(at.dealt)), elementBytes: Number(at.elementBytes)});
  const clusterOf = at => ({inside: {latency: at.insideUs, bytesPerUs: at.inside * 1e3}, between: {latency: at.betweenUs, bytesPerUs: at.between * 1e3}, overhead: at.overhead, memoryBytesPerUs: at.memory * 1e3, mergeUs: 0, storeUs: kStoreUs});
  const stepUs = (name, at) => StepTimes.stepTime(name, problemOf(at), clusterOf(at));

  const controls = node("div", "", "my_cluster_controls"), presetButtons = node("div", "", "my_cluster_presets"), figure = node("figure", "", "drawn"), words = node("div", "", "my_cluster_words");
  const table = node("table", ""), command = node("code", "", "my_cluster_command"), drawing = svg("svg", {role: "img", "aria-label": "time of a step by each algorithm"});
  figure.append(drawing);
  const scroll = node("div", "", "my_cluster_table");
  scroll.append(table);
  place.replaceChildren(presetButtons, controls, figure, words, scroll, node("div", "The same by the program:"), command);

  const inputs = {};
  for (const [name, label, unit, values] of kSliders) {
    const row = node("label", ""), input = Object.assign(document.createElement("input"), {type: "range", min: 0, max: values.length - 1, step: 1, name}), shown = node("output", "");
    row.append(node("span", label), input, shown);
    controls.append(row);
    inputs[name] = () => {
      input.value = values.reduce((best, value, i) => (Math.abs(value - chosen[name]) < Math.abs(values[best] - chosen[name]) ? i : best), 0);
      shown.textContent = `${amount(chosen[name])} ${unit}`;
    };
    input.addEventListener("input", () => change({[name]: values[input.value]}));
  }
  for (const [name, label, options] of kChoices) {
    const row = node("label", ""), select = Object.assign(document.createElement("select"), {name});
    for (const [value, text] of options) select.append(Object.assign(node("option", text), {value}));
    row.append(node("span", label), select);
    controls.append(row);
    inputs[name] = () => { select.value = chosen[name]; };
    select.addEventListener("change", () => change({[name]: select.value}));
  }
  for (const each of presets) {
    const button = Object.assign(node("button", each.name), {type: "button"});
    button.addEventListener("click", () => { preset = each; change(each.values, true); });
    presetButtons.append(button);
  }

  /// Takes new values, then computes a point at a time, so that the page stays alive; a later change ends an earlier one.
  function change(values, isPreset) {
    chosen = {...chosen, ...values};
    if (!isPreset && Object.keys(values).some(name => name !== "axis" && name !== "keys" && (name !== "ranks" || chosen.axis === "keys"))) preset = null;
    chosen.kvHeads = Math.min(chosen.kvHeads, chosen.heads);
    for (const show of Object.values(inputs)) show();
    const mine = ++run, points = chosen.axis === "keys" ? kKeys : kGpus, curves = {}, at = {...chosen};
    delete place.dataset.done;
    const now = Object.fromEntries(StepTimes.namesFor(problemOf(at)).map(name => [name, stepUs(name, at)]));
    say(at, now);
    const work = points.flatMap(x => StepTimes.namesFor(problemOf({...at, [at.axis]: x})).map(name => [name, x]));
    const go = () => {
      if (mine !== run) return;
      for (const start = performance.now(); work.length > 0 && performance.now() - start < 30;) {
        const [name, x] = work.shift();
        (curves[name] ||= []).push([x, stepUs(name, {...at, [at.axis]: x})]);
      }
      draw(at, curves, now);
      if (work.length > 0) setTimeout(go, 0);
      else place.dataset.done = mine;
    };
    go();
  }

  /// The answer in words, the times as a table, and the command.
  function say(at, now) {
    const problem = problemOf(at), alone = problem.keys * problem.batch * problem.kvHeads * problem.headDim * 2 * problem.elementBytes / (at.memory * 1e3);
    const names = Object.keys(now), best = names.reduce((a, b) => (now[b] < now[a] ? b : a)), gain = alone / now[best];
    words.textContent = `One such GPU would read the keys and values in ${time(alone)}, if they fitted. ` + (at.ranks === 1 ? "" :
        `${at.ranks} GPUs take ${time(now[best])} with ${best}: ${gain >= 1 ? `${ratio(gain)} times as fast` : "longer than one alone, so it does not pay"}. ` +
        `The ring takes ${ratio(now.ring / now[best])} times as long as that.`) +
        (at.ranks > 1 && now["one-shot"] !== undefined ? ` The times of one-shot assume ${kStoreUs} µs for a store into another GPU; this has not been measured.` : "");
    const head = node("tr", ""), rows = names.map(name => {
      const row = node("tr", "");
      row.append(node("td", name, `key ${kLooks[name][0]}`), node("td", time(now[name])), node("td", ratio(now[name] / now["two-level"])), node("td", ratio(now.ring / now[name])));
      row.dataset.us = now[name];
      row.dataset.algorithm = name;
      return row;
    });
    for (const title of ["algorithm", "step", "step / two-level", "ring / step"]) head.append(node("th", title));
    table.replaceChildren(head, ...rows);
    command.textContent = `tree_attn predict --seq-len ${problem.keys} --batch ${problem.batch} --heads ${problem.heads} --kv-heads ${problem.kvHeads} --head-dim ${problem.headDim} ` +
        `--dtype ${problem.elementBytes === 2 ? "bf16" : "f32"} --order ${problem.dealt ? "dealt" : "contiguous"} --ranks ${problem.ranks} --ranks-per-node ${problem.perNode} ` +
        `--bandwidth ${at.inside},${at.between} --latency ${at.insideUs},${at.betweenUs} --overhead ${at.overhead} --memory-bandwidth ${at.memory}`;
  }

  /// The curves in double logarithmic axes, and the points of the paper on its own clusters.
  function draw(at, curves, now) {
    const isNarrow = place.clientWidth < 600, width = isNarrow ? 460 : 860, height = 400, left = 62, right = isNarrow ? 14 : 122, top = 14, bottom = 44;
    const xs = at.axis === "keys" ? kKeys : kGpus, points = preset && at.axis === "keys" ? preset.points.map(each => ({...each, us: each.us || now.ring / each.ringOver})) : [];
    const times = [...Object.values(curves).flat().map(([, us]) => us), ...points.map(each => each.us)].filter(us => us > 0);
    const low = Math.floor(Math.log10(Math.min(...times))), high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...times))));
    const x = n => left + (width - left - right) * Math.log(n / xs[0]) / Math.log(xs[xs.length - 1] / xs[0]);
    const y = us => top + (height - top - bottom) * (high - Math.log10(Math.max(us, 10 ** low))) / (high - low);
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("width", width);
    drawing.replaceChildren();
    for (let decade = low; decade <= high; ++decade) {
      drawing.append(svg("line", {class: "empty", x1: left, x2: width - right, y1: y(10 ** decade), y2: y(10 ** decade)}));
      drawing.append(svg("text", {class: "small", x: left - 30, y: y(10 ** decade) + 4}, decade >= 6 ? `${10 ** (decade - 6)} s` : decade >= 3 ? `${10 ** (decade - 3)} ms` : `${10 ** decade} µs`));
    }
    xs.forEach((n, i) => { if (at.axis !== "keys" || i % (isNarrow ? 4 : 2) === 0) drawing.append(svg("text", {class: "small", x: x(n), y: height - bottom + 18}, amount(n))); });
    drawing.append(svg("text", {x: (left + width - right) / 2, y: height - 6}, at.axis === "keys" ? "keys" : "GPUs"));
    drawing.append(svg("line", {class: "slow", "stroke-dasharray": "2 5", x1: x(at[at.axis]), x2: x(at[at.axis]), y1: top, y2: height - bottom}));
    const ends = [];
    for (const [name, curve] of Object.entries(curves)) {
      const [kind, dashes] = kLooks[name], path = curve.filter(([, us]) => us > 0).map(([n, us], i) => `${i ? "L" : "M"}${x(n).toFixed(1)} ${y(us).toFixed(1)}`).join(" ");
      drawing.append(svg("path", {class: `curve ${kind}`, d: path || "M0 0", "stroke-dasharray": dashes, "data-algorithm": name}));
      if (curve.length === xs.length) ends.push([y(curve[curve.length - 1][1]), name, kind]);
    }
    // Names at the ends of the curves, from below, with room for each.
    let free = height - bottom + 8;
    if (!isNarrow) {
      for (const [wanted, name, kind] of ends.sort((a, b) => b[0] - a[0])) {
        free = Math.min(free - 13, wanted + 4);
        drawing.append(svg("text", {class: `left curve_name ${kind}`, x: width - right + 6, y: free}, name === "one-shot" ? "one-shot, assumed" : name));
      }
    }
    for (const {keys, us, label, kind} of points) {
      const mark = svg("circle", {class: `paper_point ${kind}`, cx: x(keys), cy: y(us), r: 5});
      mark.append(svg("title", {}, `${label}: ${time(us)}`));
      drawing.append(mark);
    }
    if (points.length > 0) {
      const note = svg("text", {class: "left small", x: left + 8, y: top + 12}, `Circles: ${preset.note[0]}`);
      drawing.append(note, svg("text", {class: "left small", x: left + 8, y: top + 26}, preset.note[1]));
    }
  }
  change({}, true);
}
