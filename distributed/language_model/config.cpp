// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads and checks the config of a model.
#include "distributed/language_model/config.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

namespace tree_attn {
namespace {

using Json = nlohmann::json;

/// Entries that are read, and entries for people, which change nothing.
constexpr std::string_view kRead[] = {"vocab",  "dim",    "heads",     "kv_heads", "head_dim",   "ff",
                                      "layers", "window", "rope_base", "eps",      "scale_base", "global_rotary"};
constexpr std::string_view kForPeople[] = {"about",    "author",  "authors", "comment",  "creator", "date",   "description",
                                           "language", "licence", "license", "link",     "name",    "note",   "notes",
                                           "source",   "title",   "trained", "training", "url",     "version"};

/// The entries of a config, with errors that name the file and the entry.
class ConfigReader {
 public:
  explicit ConfigReader(const SafetensorsFile& file) : path_(file.path()) {
    const auto text = file.metadata("config");
    if (!text) fail("no entry \"config\" in __metadata__: this is not a model of tree_attn generate");
    // The library skips a byte order mark, and reads no further than a NUL.
    if (text->starts_with("\xEF\xBB\xBF") || text->find('\0') != text->npos)
      fail("config has a byte order mark or a NUL, which JSON does not have: " + readable(*text, 80));
    json_ = Json::parse(
        *text,
        [this](int depth, Json::parse_event_t event, const Json& value) {
          check(static_cast<std::size_t>(depth), event, value);
          return true;
        },
        false);
    if (!json_.is_object()) fail("config is not a JSON object: " + readable(*text, 80));
  }

  [[noreturn]] void fail(const std::string& what) const { throw InputError(readable(path_, 200) + ": " + what); }
  [[noreturn]] void refuse(const char* name, const std::string& why) const {
    fail("config: " + std::string(name) + " is " +
         readable(json_[name].dump(-1, ' ', true, Json::error_handler_t::replace), 80) + why);
  }

  /// Refuses entries that would change nothing although their writer may have meant another model.
  void check_names(const ModelConfig& config) const {
    // What these say is always computed, so nothing else may stand there.
    const Json computed{{"tokeniser", "ASCII bytes, others 63"},
                        {"rotary", "halves"},
                        {"scale", "ln(n) / ln(scale_base) / sqrt(head_dim), n visible keys, in the global layer"},
                        {"local_layers", std::ranges::count(config.layers, LayerKind::kWindow)}};
    std::string unknown;
    for (const auto& [name, value] : json_.items()) {
      if (computed.contains(name)) {
        if (value != computed[name]) refuse(name.c_str(), ", not " + computed[name].dump());
      } else if (std::ranges::count(kRead, name) == 0 && std::ranges::count(kForPeople, name) == 0 &&
                 !name.starts_with('_')) {
        unknown += (unknown.empty() ? "\"" : ", \"") + readable(name) + "\"";
      }
    }
    if (!unknown.empty())
      fail("config: unknown: " + readable(unknown, 200) +
           "; describe a model in \"description\", or in names that begin with _");
  }

  std::int64_t size(const char* name, std::int64_t most) const {
    if (!json_.contains(name)) fail("config has no \"" + std::string(name) + "\"");
    const Json& value = json_[name];
    if (!value.is_number_integer() || value < 1 || value > most)
      refuse(name, ", not an integer in 1 .. " + std::to_string(most));
    return value;
  }
  double positive(const char* name, double otherwise) const {
    if (!json_.contains(name)) return otherwise;
    const Json& value = json_[name];
    if (!value.is_number() || !(value > 0) || !std::isfinite(value.get<double>())) refuse(name, ", not a positive number");
    return value;
  }
  bool flag(const char* name) const {
    if (!json_.contains(name)) return false;
    if (!json_[name].is_boolean()) refuse(name, ", not true or false");
    return json_[name];
  }
  std::vector<LayerKind> layers() const {
    if (!json_.contains("layers")) fail("config has no \"layers\"");
    std::vector<LayerKind> kinds;
    if (!json_["layers"].is_array()) refuse("layers", ", not a list");
    for (const Json& kind : json_["layers"]) {
      if (kind != "window" && kind != "global") refuse("layers", ", not a list of \"window\" and \"global\"");
      kinds.push_back(kind == "window" ? LayerKind::kWindow : LayerKind::kGlobal);
    }
    if (std::count(kinds.begin(), kinds.end(), LayerKind::kGlobal) == 0) refuse("layers", ", without a global layer");
    return kinds;
  }

 private:
  /// Refuses what a document does not show, duplicate keys, and what the library would print by recursion, deep nesting.
  void check(std::size_t depth, Json::parse_event_t event, const Json& value) {
    constexpr std::size_t kMostDepth = 32;
    using Event = Json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth == kMostDepth)
      fail("config: objects and lists are nested more than " + std::to_string(kMostDepth) + " deep");
    if (event == Event::object_start) keys_.resize(depth), keys_.emplace_back();
    if (event == Event::key && !keys_[depth - 1].insert(value.get<std::string>()).second)
      fail("config: duplicate key \"" + readable(value.get<std::string>()) + "\"");
  }

  std::string path_;
  Json json_;
  std::vector<std::set<std::string>> keys_;  // of the objects around the parser's position, by depth
};

}  // namespace

std::int64_t ModelConfig::leading_windows() const {
  return std::find(layers.begin(), layers.end(), LayerKind::kGlobal) - layers.begin();
}

ModelConfig read_config(const SafetensorsFile& file) {
  constexpr std::int64_t kMost = 1 << 20;
  const ConfigReader reader(file);
  ModelConfig config;
  config.vocab = reader.size("vocab", kMost);
  config.dim = reader.size("dim", kMost);
  config.heads = reader.size("heads", 65536);
  config.kv_heads = reader.size("kv_heads", 65536);
  config.head_dim = reader.size("head_dim", 65536);
  config.ff = reader.size("ff", kMost);
  config.layers = reader.layers();
  if (std::count(config.layers.begin(), config.layers.end(), LayerKind::kWindow) > 0)
    config.window = reader.size("window", kMost);
  config.rope_base = reader.positive("rope_base", config.rope_base);
  config.eps = reader.positive("eps", config.eps);
  config.scale_base = reader.positive("scale_base", 0);
  config.global_rotary = reader.flag("global_rotary");
  reader.check_names(config);
  if (config.vocab < 128) reader.refuse("vocab", ", but a token is an ASCII byte: at least 128");
  if (config.heads % config.kv_heads != 0) reader.refuse("heads", ", not a multiple of kv_heads");
  if (config.head_dim % 2 != 0) reader.refuse("head_dim", ", not even: rotary positions turn pairs");
  if (config.scale_base == 1) reader.refuse("scale_base", ", whose logarithm is 0");
  return config;
}

}  // namespace tree_attn
