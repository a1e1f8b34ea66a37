// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The model against PyTorch's numbers, and against its definition in double precision.
#include "distributed/language_model/generator.hpp"
#include "distributed/language_model/sampler.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "tests/distributed/language_model/model_files.hpp"
#include "tests/distributed/language_model/plain_model.hpp"

#include <algorithm>

namespace {

using namespace tree_attn;
using namespace tree_attn::test;
using Matrix = PlainModel<double>::Matrix;

const std::string kReference = TREE_ATTN_TEST_DATA "/recall/reference.safetensors";

/// A tensor [T, n] of the reference file.
Matrix tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = file.at(name);
  Rows rows(info.shape[0], info.shape[1]);
  load(file.data(info), DType::F32, rows.size(), rows.data());
  return rows.cast<double>();
}

/// Largest difference from the definition.
double distance(const Matrix& ours, const Matrix& truth) {
  REQUIRE(ours.rows() == truth.rows());
  REQUIRE(ours.cols() == truth.cols());
  REQUIRE(ours.allFinite());
  return (ours - truth).cwiseAbs().maxCoeff();
}

/// Each layer, from what the layers before it computed in F32, has at most twice the error of the definition in F32.
/// Attention of global layers, to the positions of the text alone, is that of the definition.
void check_layers(const Model& model, const SafetensorsFile& file, const std::string& text) {
  const PlainModel<double> exact(file);
  const PlainModel<float> plain(file);
  const ModelConfig& c = model.config();
  const GlobalAttention attend = [&](std::int64_t layer, const Rows& h, const Rotation& rotation) {
    const auto heads = [&](const Rows& x, std::int64_t n) -> Matrix {
      return without_padding(x, n, c.head_dim).cast<double>();
    };
    const Matrix z =
        exact.attention(heads(model.queries(layer, h, rotation), c.heads), heads(model.keys(layer, h, rotation), c.kv_heads),
                        heads(model.values(layer, h), c.kv_heads), true);
    return with_padding(z.cast<float>(), c.heads, c.head_dim);
  };
  const Rotation rotation(c, 0, std::ssize(text));
  Cursor cursor;
  Rows x = model.embed(text);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    const Rows before = without_padding(x, 1, c.dim);
    PlainModel<double>::Result ignored;
    PlainModel<float>::Result ignored_too;
    const Matrix truth = exact.layer(i, before.cast<double>(), ignored);
    x = model.layer(static_cast<std::int64_t>(i), x, cursor, rotation, attend);
    const double error = distance(without_padding(x, 1, c.dim).cast<double>(), truth),
                 of_plain = distance(plain.layer(i, before, ignored_too).cast<double>(), truth);
    CAPTURE(i);
    MESSAGE("error " << error << ", of the definition in F32 " << of_plain);
    CHECK(error <= 2 * of_plain);
    CHECK(x.rightCols(x.cols() - c.dim).isZero());  // the padding stays zero
  }
}

/// Logits of all positions of a text, each appended by itself.
Matrix all_logits(const Model& model, const std::string& text) {
  Matrix logits(std::ssize(text), model.config().vocab);
  run_threads(Topology::pretend(1, 1), 60, [&](ThreadTransport& transport) {
    Generator generator(model, cpu_backend(), transport, 0, find_algorithm("two-level"), {});
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::vector<float> scores = generator.append(text.substr(i, 1));
      logits.row(static_cast<Eigen::Index>(i)) =
          Eigen::Map<const Eigen::RowVectorXf>(scores.data(), std::ssize(scores)).cast<double>();
    }
  });
  return logits;
}

}  // namespace

TEST_CASE("model: activations and logits are those of PyTorch, and as close to the definition") {
  const auto file = SafetensorsFile::open(kRecall), reference = SafetensorsFile::open(kReference);
  const std::string text = *reference.metadata("text");
  REQUIRE(text.size() == 213);
  const PlainModel<double>::Result truth = PlainModel<double>(file).run(text);
  const Model model(file);
  check_layers(model, file, text);

  // The error of a good implementation in the same precision, PyTorch's, is at most doubled.
  const auto compare = [&](const Matrix& ours, const std::string& name, const Matrix& wanted) {
    const double error = distance(ours, wanted), theirs = distance(tensor(reference, name), wanted);
    CAPTURE(name);
    MESSAGE(name << ": error " << error << ", of PyTorch " << theirs);
    CHECK(error <= 2 * theirs);
  };
  const Rotation rotation(model.config(), 0, std::ssize(text));
  Cursor cursor;
  Rows x = model.embed(text);
  for (std::int64_t i = 0; i < 2; ++i) {
    x = model.layer(i, x, cursor, rotation, {});
    compare(without_padding(x, 1, 128).cast<double>(), "hidden." + std::to_string(i + 1),
            truth.hidden[static_cast<std::size_t>(i) + 1]);
  }
  cursor = {};
  model.run(text, cursor, [&](std::int64_t layer, const Rows& h, const Rotation& of_text) {
    compare(model.keys(layer, h, of_text).cast<double>(), "k", truth.k[2]);
    compare(model.values(layer, h).cast<double>(), "v", truth.v[2]);
    return Rows(0, h.cols());
  });
  const Matrix logits = all_logits(model, text), theirs = tensor(reference, "logits");
  compare(logits, "logits", truth.logits);
  for (Eigen::Index i = 0; i < logits.rows(); ++i) {
    Eigen::Index our_best = 0, their_best = 0;
    logits.row(i).maxCoeff(&our_best), theirs.row(i).maxCoeff(&their_best);
    CHECK(our_best == their_best);
  }
}

TEST_CASE("model: a plain Llama, and layers of both kinds, have at most twice the error of the definition in F32") {
  const Scratch scratch;
  for (const std::string& config : {kLlamaConfig, kMixedConfig}) {
    CAPTURE(config);
    const auto file = SafetensorsFile::open(random_model(scratch, config));
    const Model model(file);
    const std::string text = random_text(90, 3);
    check_layers(model, file, text);
    CHECK(distance(all_logits(model, text), PlainModel<double>(file).run(text).logits) < 2e-5);
  }
}

TEST_CASE("model: a position has the same bits in blocks of any size, and after any halo that is long enough") {
  const Scratch scratch;
  for (const std::string& path : {kRecall, random_model(scratch, kWindowConfig)}) {
    CAPTURE(path);
    const auto file = SafetensorsFile::open(path);
    const Model model(file);
    const std::int64_t halo = model.config().halo();
    CHECK(halo == (path == kRecall ? 46 : 12));
    const std::string text = random_text(400, 5);
    // Keys and values of the global layer of the positions [begin, end), in blocks of a size, started at a position.
    const auto keys_and_values = [&](std::int64_t start, std::int64_t block, std::int64_t begin, std::int64_t end) {
      std::vector<float> both;
      Cursor cursor{start};
      while (cursor.position < end) {
        const std::int64_t size = std::min(block, end - cursor.position);
        model.run(text.substr(static_cast<std::size_t>(cursor.position), static_cast<std::size_t>(size)), cursor,
                  [&](std::int64_t layer, const Rows& h, const Rotation& rotation) {
                    const Rows k = model.keys(layer, h, rotation), v = model.values(layer, h);
                    for (Eigen::Index i = std::max<Eigen::Index>(0, begin - rotation.position); i < h.rows(); ++i) {
                      both.insert(both.end(), k.row(i).begin(), k.row(i).end());
                      both.insert(both.end(), v.row(i).begin(), v.row(i).end());
                    }
                    return Rows(0, h.cols());
                  });
      }
      return both;
    };
    const std::vector<float> whole = keys_and_values(0, 400, 0, 400);
    const std::size_t of_position = whole.size() / 400;
    const auto same = [&](const std::vector<float>& part, std::int64_t begin) {
      const float* const wanted = whole.data() + static_cast<std::size_t>(begin) * of_position;
      return std::memcmp(wanted, part.data(), part.size() * sizeof(float)) == 0;
    };
    for (const std::int64_t block : {1, 2, 3, 7, 8, 9, 23, 24, 63, 64, 100, 399})
      CHECK(same(keys_and_values(0, block, 0, 400), 0));
    for (std::int64_t begin = halo; begin < halo + 70; ++begin)
      CHECK(same(keys_and_values(begin - halo, 17, begin, begin + 40), begin));
    CHECK(same(keys_and_values(3, 64, 200, 300), 200));
    // One character less is seen, where no weight is so small that it rounds away as in the trained model.
    if (path != kRecall) CHECK_FALSE(same(keys_and_values(200 - halo + 1, 64, 200, 300), 200));
  }
}

TEST_CASE("model: rotary positions a million characters into a text are those of the definition") {
  ModelConfig config;
  config.head_dim = 8;
  const std::int64_t position = 1048571;
  const Rotation rotation(config, position, 3);
  Rows x = Rows::Zero(2, 64);  // two heads; the last two of the three positions
  x.col(0).setConstant(1), x.col(32 + 5).setConstant(1);
  rotation.turn(x, 2);
  for (int i = 0; i < 2; ++i) {
    const double p = static_cast<double>(position + 1 + i), slow = p * std::pow(10000.0, -2.0 / 8);
    CHECK(x(i, 0) == doctest::Approx(std::cos(p)).epsilon(1e-6));
    CHECK(x(i, 4) == doctest::Approx(std::sin(p)).epsilon(1e-6));
    CHECK(x(i, 32 + 5) == doctest::Approx(std::cos(slow)).epsilon(1e-6));
    CHECK(x(i, 32 + 1) == doctest::Approx(-std::sin(slow)).epsilon(1e-6));
  }
}
