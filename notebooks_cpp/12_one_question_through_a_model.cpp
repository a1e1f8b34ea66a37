// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 12

// %% [markdown]
// # Notebook 12: One question through a model {#notebook_model}
//
// A language model reads a text of 131072 characters and is asked one question. We follow the
// question: what the layers make of the text, which keys the query finds, how much weight they get,
// and how the answer comes out, on one rank and on five.
//
// **What you need:** the chapter on @ref whole_model. **What you get:** the attention over all its
// positions as a picture, a measurement of what the factor $\ln n$ does, and the same answer
// on several layouts.

// %%
#include "distributed/language_model/generator.hpp"
#include "distributed/language_model/sampler.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "notebooks_cpp/notebook.hpp"

using namespace tree_attn;
using namespace notebook;

int main() {
  // %% [markdown]
  // ## The text
  //
  // Words in random order, and records like `The code of velora is 402913.` at random places. Keys are
  // syllables, values are digits.

  // %%
  const std::int64_t N = 131072;
  std::mt19937 random(4);
  const auto draw = [&](const std::string& letters) { return letters[random() % letters.size()]; };
  const std::vector<std::string> words = {"that ",    "among ", "these ", "are ",     "life, ",
                                          "liberty ", "and ",   "the ",   "pursuit ", "of "};
  std::string text, key, value;
  while (std::ssize(text) < N) {
    text += words[random() % words.size()];
    if (random() % 140 != 0) continue;
    key.clear(), value.clear();
    for (int i = 0; i < 6; ++i) key += draw(i % 2 == 0 ? "bcdfgklmnprstv" : "aeiou"), value += draw("0123456789");
    text += "The code of " + key + " is " + value + ". ";
  }
  // One record that we know, in the middle.
  const std::string record = "The code of velora is 402913. ", question = "\nThe code of velora is ";
  text = text.replace(N / 2, record.size(), record).substr(0, N);
  const std::int64_t target = N / 2 + std::ssize(record) - 8;  // of the value's first character
  std::printf("%td characters; the answer begins at %td: \"%s\"\n", N, target, text.substr(target - 22, 29).c_str());

  // %% [markdown]
  // ## What the windowed layers make of it
  //
  // `Model::run()` takes characters through the layers, and calls a function of ours where a global layer
  // would attend. We collect the keys of that layer, and stop there.

  // %%
  const Model model(SafetensorsFile::open(TREE_ATTN_TEST_DATA "/recall/model.safetensors"));
  const ModelConfig& config = model.config();
  Cursor cursor;
  Rows keys(0, padded(config.head_dim)), q;
  const auto keep_keys = [&](std::int64_t layer, const Rows& h, const Rotation& rotation) {
    const Rows k = model.keys(layer, h, rotation);
    if (rotation.position + k.rows() > keys.rows()) keys.conservativeResize(rotation.position + k.rows(), Eigen::NoChange);
    keys.middleRows(rotation.position, k.rows()) = k;
    q = model.queries(layer, h.bottomRows(1), rotation);
    return Rows(0, h.cols());
  };
  for (std::int64_t begin = 0; begin < N; begin += 64) model.run(text.substr(begin, 64), cursor, keep_keys);
  std::printf("%td layers, %td of them windowed; keys of the global layer: %td x %td\n", std::ssize(config.layers),
              config.leading_windows(), keys.rows(), keys.cols());

  // %% [markdown]
  // **Predict:** the key of a position depends on the characters before it. On how many? If we start reading
  // 46 characters before a shard, which of the rows have the bits of a reading from the start of the text?

  // %%
  const Rows whole = keys;
  Cursor shard{.position = N / 3 - config.halo()};
  model.run(text.substr(shard.position, config.halo() + 200), shard, keep_keys);
  const auto same_rows = [&](std::int64_t begin, std::int64_t n) {
    return std::memcmp(&keys(begin, 0), &whole(begin, 0), std::size_t(n * keys.cols()) * sizeof(float)) == 0;
  };
  std::printf("halo of %td: own rows %s, rows of the halo %s\n", config.halo(),
              same_rows(N / 3, 200) ? "have the same bits" : "differ",
              same_rows(N / 3 - config.halo(), config.halo()) ? "have the same bits" : "differ");
  expect(same_rows(N / 3, 200), "a halo is enough");
  expect(!same_rows(N / 3 - config.halo(), config.halo()), "inside the halo, windows are cut off");
  keys = whole;

  // %% [markdown]
  // ## What the query finds
  //
  // The last character of the question makes one query per head. Its score with a key is
  // $q \cdot k / \sqrt{d_h} \cdot \ln n / \ln 256$.

  // %%
  model.run(question, cursor, keep_keys);
  const std::int64_t n = keys.rows();
  const auto weights = [&](int head, std::int64_t visible, double factor) {
    Eigen::VectorXd s =
        keys.topRows(visible).cast<double>() * q.row(0).segment(head * keys.cols(), keys.cols()).transpose().cast<double>();
    s *= factor / std::sqrt(double(config.head_dim));
    const double largest = s.maxCoeff();
    s = (s.array() - largest).exp();
    return Eigen::VectorXd(s / s.sum());
  };
  const double factor = std::log(double(n)) / std::log(config.scale_base);
  for (int head = 0; head < config.heads; ++head) {
    Eigen::Index at = 0;
    const Eigen::VectorXd w = weights(head, n, factor);
    const double largest = w.maxCoeff(&at);
    std::printf("head %d: largest weight %.4f at position %td, \"%s\"\n", head, largest, at,
                text.substr(std::max<std::int64_t>(0, at - 8), 9).c_str());
  }
  Eigen::Index found = 0;
  const Eigen::VectorXd w = weights(0, n, factor);
  w.maxCoeff(&found);
  expect(found == target, "head 0 finds the first character of the value");

  // %% Drawing
  std::string points;
  for (std::int64_t begin = 0; begin + 512 <= n; begin += 512) {
    points += row({double(begin), std::max(-40.0, std::log10(std::max(w.segment(begin, 512).maxCoeff(), 1e-300)))});
  }
  figure("notebook_model_attention", "$w << EOD\n" + points + R"(EOD
set xlabel 'position'
set ylabel 'log_{10} of the largest weight among 512 positions'
set format x '%.0f'
set xtics 32768
unset key
set yrange [-25:1]
plot $w with points pt 7 ps 0.5 lc rgb '#1982d2')");

  // %% [markdown]
  // ![Head 0 of the global layer: the largest weight among every 512 positions, logarithmic](notebook_model_attention.svg)
  //
  // The highest peak is the record that we asked for, in the middle.
  //
  // ## What the factor does
  //
  // Without $\ln n / \ln 256$ the other keys would win by their number. We take the positions around the
  // target, more and more of them, and compare the weight on the target with and without the factor.

  // %%
  std::printf("%10s %18s %18s\n", "keys", "with the factor", "without");
  double last = 0;
  for (std::int64_t size = 1024; size <= N; size *= 4) {
    const Rows all = keys;
    keys = all.middleRows(std::max<std::int64_t>(0, target - size / 2), size).eval();
    const std::int64_t at = target - std::max<std::int64_t>(0, target - size / 2);
    const double with = weights(0, size, std::log(double(size)) / std::log(config.scale_base))(at),
                 without = weights(0, size, 1)(at);
    std::printf("%10td %18.4f %18.4f\n", size, with, without);
    expect(with >= without, "the factor helps from 256 keys on");
    last = with;
    keys = all;
  }
  expect(last > 0.5, "most of the weight stays on the target");

  // %% [markdown]
  // ## The answer, on one rank and on five
  //
  // Now the generator: every rank reads its own part of the text, and the ranks decode together.

  // %%
  const auto answer = [&](int n_ranks, LeafOrder order) {
    std::string said;
    std::vector<float> all_logits;
    run_threads(Topology::pretend(n_ranks, 2), 60, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      Generator generator(model, cpu_backend(), transport, N, find_algorithm("two-level"), {.order = order});
      generator.read(text);
      std::string mine;
      std::vector<float> logits, every;
      for (std::string next = question; mine.empty() || mine.back() != '.'; next = mine.back()) {
        logits = generator.append(next);
        every.insert(every.end(), logits.begin(), logits.end());
        mine += sample(logits, {}, 0);
      }
      if (ranks.rank() == 0) said = mine, all_logits = every;
    });
    std::printf("%d ranks, %s: %s\n", n_ranks, std::string(name_of(order)).c_str(), said.c_str());
    expect(said == "402913.", "the answer is right");
    return all_logits;
  };
  const std::vector<float> alone = answer(1, LeafOrder::kContiguous);
  expect(same_bits(answer(5, LeafOrder::kContiguous), alone), "five ranks have the bits of one");
  const std::vector<float> dealt = answer(1, LeafOrder::kDealt);
  expect(same_bits(answer(5, LeafOrder::kDealt), dealt), "in the dealt order too");
}

// %% [markdown]
// ## What to take home
//
// 1. A windowed layer makes the keys of the next one depend on a few characters only, so a rank can
//    read its part of a text alone.
// 2. The query of the last character finds one position among all.
// 3. The text and the logits do not depend on the number of ranks.
//
// ## Questions
//
// 1. (Easy.) How large would the halo be with three windowed layers below the global one?
//
//    <details><summary>Answer</summary>
//
//    69: every layer looks back by 23 positions, and the layers add up.
//
//    </details>
//
// 2. (Medium.) The rows of the halo differ. Why does the wrong part not spread into the shard?
//
//    <details><summary>Answer</summary>
//
//    Only windows that reach before the start of the reading are cut off. From 23 positions after the start on,
//    the window of the first layer is complete. From 46 positions on, the window of the second layer is
//    complete too, and has only positions whose first window was complete.
//
//    </details>
