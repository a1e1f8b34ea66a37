// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A model over sharded keys and values: the same text and logits on every layout.
#include "distributed/language_model/generator.hpp"
#include "distributed/language_model/sampler.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "tests/distributed/language_model/model_files.hpp"
#include "tests/distributed/language_model/plain_model.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/tensors.hpp"

#include <cstring>
#include <optional>

namespace {

using namespace tree_attn;
using namespace tree_attn::test;

/// Answer of one rank, and the logits it comes from.
struct Answer {
  std::string text;
  std::vector<float> logits;
  LargestWeight largest;
  bool operator==(const Answer& other) const { return text == other.text && same_bits(logits, other.logits); }
};

/// A layout of the ranks, and everything else that must not change an answer.
struct Setting {
  int n_ranks = 1, per_node = 1;
  std::string_view algorithm = "two-level";
  GeneratorOptions options = {};
  const Backend* backend = &cpu_backend();
};

/// Reads a text, and answers questions, each as the first: what every rank says to them.
std::vector<std::vector<Answer>> ask(const Model& model, const std::string& text, const std::vector<std::string>& questions,
                                     const Setting& setting, int n_tokens = 12, const Sampling& sampling = {}) {
  std::vector<std::vector<Answer>> answers(static_cast<std::size_t>(setting.n_ranks));
  run_threads(Topology::pretend(setting.n_ranks, setting.per_node), 60,
              [&](const ThreadRanks& ranks, ThreadTransport& transport) {
                Generator generator(model, *setting.backend, transport, std::ssize(text), find_algorithm(setting.algorithm),
                                    setting.options);
                generator.read(text);
                CHECK(generator.size() == std::ssize(text));
                const Cursor after_text = generator.cursor();
                for (const std::string& question : questions) {
                  Answer answer;
                  std::vector<float> logits = generator.append(question);
                  answer.largest = generator.largest_weight(ranks);
                  for (int step = 0; step < n_tokens; ++step) {
                    answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
                    answer.text += sample(logits, sampling, static_cast<std::uint64_t>(step));
                    if (answer.text.back() == '.') break;
                    logits = generator.append(answer.text.substr(answer.text.size() - 1));
                  }
                  answers[static_cast<std::size_t>(ranks.rank())].push_back(answer);
                  generator.rewind(after_text);
                }
              });
  return answers;
}

/// Words around a record, the value of which begins at the given position.
std::string haystack(std::size_t n, std::size_t at) {
  const std::string record = "The code of velora is 402913. ";
  std::string text;
  while (text.size() < n) text += "that among these are life, liberty and the ";
  text.resize(n);
  return text.replace(at - record.find("402913"), record.size(), record);
}

const std::string kQuestion = "\nThe code of velora is ";

}  // namespace

TEST_CASE("generator: same characters and logits in bits on 1 to 8 ranks, in both orders, by algorithms that promise it") {
  const auto file = SafetensorsFile::open(kRecall);
  const Model model(file);
  const std::string text = haystack(1500, 700);
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
    const Answer alone = ask(model, text, {kQuestion}, {.options = {.order = order}})[0][0];
    CHECK(alone.text == "402913.");
    CHECK(alone.largest.position == 700);
    CHECK(alone.largest.weight > 0.9);
    for (const int n_ranks : {2, 3, 8}) {
      if (kIsSanitized && n_ranks != 3) continue;
      std::int64_t holder = 0;  // the rank of the first rows that include position 700
      const std::vector<KeyRange> ranges = growing_ranges(order, 1500, n_ranks);
      while (OwnedLeaves(ranges[static_cast<std::size_t>(holder)], order).n_keys(700) ==
             OwnedLeaves(ranges[static_cast<std::size_t>(holder)], order).n_keys(701))
        ++holder;
      for (const Algorithm& algorithm : algorithms()) {
        CAPTURE(n_ranks);
        CAPTURE(algorithm.name);
        const auto answers =
            ask(model, text, {kQuestion}, {n_ranks, 3, algorithm.name, {.order = order, .n_threads = n_ranks == 2 ? 3 : 1}});
        for (const std::vector<Answer>& rank : answers) {
          CHECK(rank == answers[0]);
          CHECK(rank[0].text == alone.text);
          CHECK(rank[0].largest.position == 700);
          CHECK(rank[0].largest.rank == holder);
          if (algorithm.keeps_bits) CHECK(rank[0] == alone);
        }
      }
    }
  }
}

TEST_CASE("generator: a Llama whose layers are all global, and layers in any order, on 1 to 5 ranks") {
  const Scratch scratch;
  for (const std::string& config : {kLlamaConfig, kMixedConfig, kWindowConfig}) {
    CAPTURE(config);
    const auto file = SafetensorsFile::open(random_model(scratch, config));
    const Model model(file);
    const std::string text = random_text(300, 8);
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      const Sampling sampling{.temperature = 0.8, .seed = 3};
      const Answer alone = ask(model, text, {"ab"}, {.options = {.order = order}}, 30, sampling)[0][0];
      for (const int n_ranks : {2, 5}) {
        // Nothing of the question before is left.
        const auto answers = ask(model, text, {"cde", "ab"}, {n_ranks, 2, "two-level", {.order = order}}, 30, sampling);
        for (const std::vector<Answer>& rank : answers) CHECK(rank[1] == alone);
      }
    }
  }
}

TEST_CASE("generator: every layer holds every key and value once") {
  const Scratch scratch;
  const auto file = SafetensorsFile::open(random_model(scratch, kLlamaConfig));
  const Model model(file);
  const ModelConfig& config = model.config();
  const std::string text = random_text(300, 8);
  run_threads(Topology::pretend(1, 1), 60, [&](ThreadTransport& transport) {
    Generator generator(model, cpu_backend(), transport, std::ssize(text), find_algorithm("two-level"), {});
    generator.read(text);
    // With room for what is appended.
    const std::int64_t n = std::ssize(text) + 16 * kLeafKeys, of_key = config.kv_heads * config.head_dim * 4;
    CHECK(std::ssize(config.layers) > 1);
    CHECK(generator.cache_bytes() == std::ssize(config.layers) * n * 2 * of_key);
  });
}

TEST_CASE("generator: a text that is read leaves the bits of one that is appended character by character") {
  const Scratch scratch;
  const std::string llama = random_model(scratch, kLlamaConfig), mixed = random_model(scratch, kMixedConfig, 2);
  for (const std::string& path : {kRecall, llama, mixed}) {
    const auto file = SafetensorsFile::open(path);
    const Model model(file);
    for (const std::size_t n : {1, 64, 65, 200}) {
      if (kIsSanitized && n > 65) continue;
      const std::string text = random_text(n, 9);
      for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
        for (const auto* backend : {&cpu_backend(), &find_backend("emulated")}) {
          if (backend != &cpu_backend() && (n != 65 || path != llama || order == LeafOrder::kDealt)) continue;
          CAPTURE(path);
          CAPTURE(n);
          run_threads(Topology::pretend(2, 2), 60, [&](ThreadTransport& transport) {
            const auto generator = [&] {
              return Generator(model, *backend, transport, std::ssize(text), find_algorithm("two-level"), {.order = order});
            };
            Generator read = generator(), appended = generator();
            transport.clear_traffic();
            read.read(text);
            const std::int64_t n_blocks = transport.traffic().collectives;
            transport.clear_traffic();
            for (const char c : text) appended.append(std::string(1, c));
            const std::int64_t n_steps = transport.traffic().collectives;
            // A block of 64 characters is one step of every global layer; a shard that is read alone sends nothing.
            const auto n_in_blocks = static_cast<std::int64_t>(path == kRecall ? 0 : (n + 63) / 64);
            CHECK(n_blocks * static_cast<std::int64_t>(n) == n_steps * n_in_blocks);
            CHECK(same_bits(read.append("a"), appended.append("a")));
            CHECK(same_bits(read.append("bcd"), appended.append("bcd")));
          });
        }
      }
    }
  }
}

TEST_CASE("generator: an empty text, a short one, and bytes that are not ASCII") {
  const auto file = SafetensorsFile::open(kRecall);
  const Model model(file);
  for (const std::string& odd : {std::string(), std::string("a"), std::string(63, '\xC3'), std::string("\0\x7F\xFF", 3)}) {
    const Answer alone = ask(model, odd, {kQuestion}, {})[0][0];
    CHECK(alone.text.size() > 0);
    for (const std::vector<Answer>& rank : ask(model, odd, {kQuestion}, {3, 3})) CHECK(rank[0] == alone);
  }
  // A byte that is not ASCII is a question mark.
  CHECK(ask(model, "caf\xC3\xA9", {kQuestion}, {})[0][0] == ask(model, "caf??", {kQuestion}, {})[0][0]);
}

TEST_CASE("generator: caches of 16 bits and the emulated kernels") {
  const auto file = SafetensorsFile::open(kRecall);
  const Model model(file);
  const std::string text = haystack(500, 300);
  const Answer plain = ask(model, text, {kQuestion}, {2, 1})[0][0];
  for (const DType dtype : {DType::BF16, DType::F16}) {
    const auto answers = ask(model, text, {kQuestion}, {3, 3, "two-level", {.dtype = dtype}});
    CHECK(answers[0][0].text == "402913.");
    CHECK_FALSE(answers[0][0] == plain);  // it did round
    CHECK(answers[2] == ask(model, text, {kQuestion}, {.options = {.dtype = dtype}})[0]);
  }

  const Answer emulated =
      ask(model, text.substr(250, 100), {kQuestion}, {2, 1, "two-level", {}, &find_backend("emulated")}, 3)[0][0];
  CHECK(emulated.text == "402");
}

TEST_CASE("generator: F8_E4M3 has the logits of caches whose rows were divided and rounded before, on any ranks") {
  const Scratch scratch;
  const std::string text = random_text(200, 10), question = "ab";
  const KvScales scales{{0.013f, 0x1p-5f}, {0.02f, 0.0071f}};
  for (const std::string& name : {random_model(scratch, kLlamaConfig), random_model(scratch, kMixedConfig, 2), kRecall}) {
    CAPTURE(name);
    const auto file = SafetensorsFile::open(name);
    const Model model(file);
    const ModelConfig& config = model.config();
    const std::int64_t n_kv = config.kv_heads, d_h = config.head_dim;
    const KvScales mine{{scales.k.begin(), scales.k.begin() + n_kv}, {scales.v.begin(), scales.v.begin() + n_kv}};
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      // One cache for each layer, and one step for each character.
      const GeneratorOptions options{.order = order, .dtype = DType::F8_E4M3, .scales = mine};
      const double scale = 1 / std::sqrt(static_cast<double>(d_h));
      std::vector<OpenShard> shards;
      for (std::size_t i = 0; i < config.layers.size(); ++i)
        shards.push_back(open_shard(cpu_backend(), cache_shape(config, options),
                                    OwnedLeaves(growing_ranges(order, 0, 1)[0], order), 0, scale, {}, mine));
      const auto divided = [&](const Rows& padded_row, const std::vector<float>& by) {
        Rows row = without_padding(padded_row, n_kv, d_h);
        for (std::int64_t j = 0; j < n_kv; ++j) row.middleCols(j * d_h, d_h) /= by[static_cast<std::size_t>(j)];
        return Tensor({row.data(), row.data() + row.size()}, {1, n_kv, 1, d_h}, DType::F8_E4M3);
      };
      const auto attend = [&](std::int64_t layer, const Rows& h, const Rotation& rotation) -> Rows {
        const OpenShard& shard = shards[static_cast<std::size_t>(layer)];
        shard.cache->append(0, divided(model.keys(layer, h, rotation), mine.k), divided(model.values(layer, h), mine.v));
        const std::array n{shard.cache->longest()};
        const double factor = config.scale_base > 0 ? std::log(static_cast<double>(n[0])) / std::log(config.scale_base) : 1;
        const Rows q = without_padding(model.queries(layer, h, rotation), config.heads, d_h) * static_cast<float>(factor);
        const Tensor query({q.data(), q.data() + q.size()}, {1, config.heads, 1, d_h});
        const DecodeOutput output =
            finish_rows(shard.session->decode({query, n, {.causal = true}}).host().fold(), config.heads, d_h);
        Rows z = Eigen::Map<const Rows>(output.out.data(), 1, config.heads * d_h);
        for (std::int64_t j = 0; j < config.heads; ++j)
          z.middleCols(j * d_h, d_h) *= mine.v[static_cast<std::size_t>(j / (config.heads / n_kv))];
        return with_padding(z, config.heads, d_h);
      };
      Cursor cursor;
      Rows x;
      for (const char c : text + question) x = model.run(std::string(1, c), cursor, attend);
      const std::vector<float> expected = model.logits(x);
      for (const int p : {1, 2, 3, 4}) {
        const auto answers = ask(model, text, {question}, {p, 2, "two-level", options}, 1);
        for (const std::vector<Answer>& rank : answers) CHECK(same_bits(rank[0].logits, expected));
        CHECK(answers[0][0].largest.weight > 0);
        CHECK(answers[0][0].largest.weight <= 1);
      }
    }
  }
  const auto file = SafetensorsFile::open(kRecall);
  const Model model(file);
  const auto with = [&](const GeneratorOptions& options) {
    return ask(model, haystack(500, 300), {kQuestion}, {2, 1, "two-level", options});
  };
  const auto answer = with({.dtype = DType::F8_E4M3})[0][0];
  CHECK(answer.text == "402913.");
  CHECK(answer.largest.position == 300);
  CHECK(answer.largest.weight == doctest::Approx(with({})[0][0].largest.weight).epsilon(0.1));
}

TEST_CASE("sampler: the likeliest character, and a distribution at a temperature") {
  std::vector<float> logits(128, -50);
  logits['a'] = 1, logits['b'] = 2;
  CHECK(sample(logits, {}, 0) == 'b');
  logits['c'] = 2;
  CHECK(sample(logits, {}, 7) == 'b');  // the lowest of equals
  logits['c'] = std::nanf("");
  CHECK(sample(logits, {}, 0) == 'b');
  logits[0] = std::nanf("");
  CHECK(sample(logits, {}, 0) == 'b');

  // exp(1 / 0.5) times as many of b as of a, within five standard deviations.
  const int n = 20000;
  int n_a = 0, n_b = 0;
  for (int i = 0; i < n; ++i) {
    const char c = sample(logits, {.temperature = 0.5, .seed = 9}, static_cast<std::uint64_t>(i));
    n_a += c == 'a', n_b += c == 'b';
  }
  CHECK(n_a + n_b == n);
  const double p = 1 / (1 + std::exp(2.0));
  CHECK(std::abs(n_a - n * p) < 5 * std::sqrt(n * p * (1 - p)));
}
