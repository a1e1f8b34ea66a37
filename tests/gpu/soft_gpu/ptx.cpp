// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads PTX (PTX ISA 9.0, chapters 4 to 7): declarations, scopes, operands. What an instruction does is in the
/// tables of instructions.
#include "tests/gpu/soft_gpu/kernel.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <map>

namespace tree_attn::soft_gpu {

bool is_type(std::string_view word) {
  static constexpr std::string_view kAll[] = {"pred", "b8",  "u8",  "s8",  "b16", "u16", "s16", "f16", "bf16",
                                              "b32",  "u32", "s32", "f32", "b64", "u64", "s64", "f64", "b128"};
  return std::find(std::begin(kAll), std::end(kAll), word) != std::end(kAll);
}

int bytes_of(Type type) {
  int n_bits = 32;
  std::from_chars(type.data() + std::min(type.find_first_of("1368"), type.size()), type.data() + type.size(), n_bits);
  return n_bits / 8;
}

bool Statement::has(std::string_view part) const { return std::find(word.begin(), word.end(), part) != word.end(); }

Type Statement::type(int i) const {
  for (const std::string_view each : word) {
    if (is_type(each) && i-- == 0) return each;
  }
  return "";
}

namespace {

/// A name with its points, a number, or one other character.
struct Token {
  std::string_view text;
  std::uint32_t line;
};

/// The tokens from the beginning of the text to a brace that closes the first one, or to the first semicolon if that comes
/// first.
std::vector<Token> tokens_of(std::string_view text, std::uint32_t line) {
  const auto is_of_word = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : ' ';
    const bool is_double = c == ':' && (text.substr(i, 2) == "::" || text[i - 1] == ':');
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.' || is_double;
  };
  std::vector<Token> all;
  for (std::size_t i = 0, depth = 0; i < text.size();) {
    if (std::isspace(static_cast<unsigned char>(text[i])) != 0) {
      line += text[i++] == '\n';
    } else if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else {
      std::size_t n = 1;
      if (is_of_word(i) || (text[i] == '-' && is_of_word(i + 1))) {
        while (is_of_word(i + n)) ++n;
      }
      all.push_back({text.substr(i, n), line});
      depth += text[i] == '{' ? 1 : 0, depth -= text[i] == '}' ? 1 : 0;
      if (depth == 0 && (text[i] == '}' || text[i] == ';')) return all;
      i += n;
    }
  }
  throw Fault("the PTX ends within a kernel");
}

/// Meaning of a name: a register and its location, or an address.
struct Symbol {
  Type type;
  bool is_address;
  std::int64_t value;
};
struct Scope {
  std::map<std::string, Symbol, std::less<>> names;  ///< of %r<100>, each of its registers
  std::map<std::string_view, std::int64_t> labels;
};

class Reader {
 public:
  explicit Reader(Kernel& kernel) : kernel_(kernel) {}

  /// The name of shared memory of the whole file.
  void name_shared(std::string_view name) { scopes_.back().names[std::string(name)] = {"", true, kSharedBegin}; }

  void read(std::vector<Token> tokens) {
    tokens_ = std::move(tokens);
    // The head: .entry name ( parameters ) directives.
    for (at_ = 2; !take(")");) {
      if (!take("(") && !take(",")) parameter();
    }
    while (!take("{")) {
      const bool is_limit = take(".maxntid");
      if (!is_limit) expect(".minnctapersm");
      std::uint32_t n = number<std::uint32_t>();
      while (take(",")) n *= number<std::uint32_t>();
      if (is_limit) kernel_.most_threads = n;
    }
    while (!scopes_.empty()) {
      if (take("}"))
        end_scope();
      else if (take("{"))
        scopes_.emplace_back();
      else
        statement();
    }
    // The operands move no more: operations point to them.
    for (std::size_t i = 0; i < kernel_.ops.size(); ++i) kernel_.ops[i].at = kernel_.operands[i].data();
  }

 private:
  std::string_view peek() const { return tokens_.at(at_).text; }
  std::string_view next() { return tokens_.at(at_++).text; }
  bool take(std::string_view what) { return peek() == what && ++at_ > 0; }
  void expect(std::string_view what) {
    if (!take(what)) throw Fault("'", what, "' expected before '", peek(), "'");
  }
  /// A whole number; one with a point is a fraction of a policy of the cache, of which nothing depends.
  template <class T>
  T number() {
    std::string_view text = next();
    const bool is_negative = text.starts_with("-"), is_hexadecimal = text.find_first_of("xX") != std::string_view::npos;
    text.remove_prefix((is_negative ? 1 : 0) + (is_hexadecimal ? 2 : 0));
    std::uint64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value, is_hexadecimal ? 16 : 10).ec != std::errc())
      throw Fault("no number: '", text, "'");
    return static_cast<T>(is_negative ? 0 - value : value);
  }

  void parameter() {
    expect(".param");
    const std::uint32_t alignment = take(".align") ? number<std::uint32_t>() : 1;
    const auto size = static_cast<std::uint32_t>(bytes_of(next()));
    while (peek().starts_with(".")) next();
    const std::string_view name = next();
    const bool is_array = take("[");
    const std::uint32_t n_bytes = is_array ? size * number<std::uint32_t>() : size, unit = std::max(alignment, size),
                        begin = (kernel_.parameter_bytes + unit - 1) / unit * unit;
    if (is_array) expect("]");
    kernel_.parameters.emplace_back(begin, n_bytes), kernel_.parameter_bytes = begin + n_bytes;
    scopes_.back().names[std::string(name)] = {"", true, static_cast<std::int64_t>(kParamWindow + begin)};
  }
  /// A register, or a family of them.
  void declare_register(Type type) {
    const std::string_view name = next();
    const bool is_family = take("<");
    const auto n = is_family ? number<std::uint32_t>() : 1U,
               size = static_cast<std::uint32_t>(type == "pred" ? 4 : 32 * std::max(bytes_of(type), 2));
    if (is_family) expect(">");
    kernel_.register_bytes = (kernel_.register_bytes + size - 1) / size * size;
    for (std::uint32_t i = 0; i < n; ++i, kernel_.register_bytes += size) {
      scopes_.back().names[std::string(name) + (is_family ? std::to_string(i) : "")] = {type, false, kernel_.register_bytes};
    }
  }

  void statement() {
    const Token first = tokens_[at_];
    try {
      if (first.text.starts_with(".")) {
        if (take(".pragma")) {
          while (peek() != ";") next();
        } else {
          expect(".reg");
          const Type type = next().substr(1);
          do declare_register(type);
          while (take(","));
        }
        return expect(";");
      }
      Op op;
      op.line = first.line;
      if (take("@")) op.is_negated = take("!"), op.guard = operand().at.at(0);
      const std::string_view name = next();
      if (take(":")) {
        scopes_.back().labels[name] = static_cast<std::int64_t>(kernel_.ops.size());
        return;
      }
      Statement now;
      for (std::size_t at = 0, end = 0; at <= name.size(); at = end + 1)
        now.word.push_back(name.substr(at, (end = std::min(name.find('.', at), name.size())) - at));
      while (!take(";")) {
        if (take(",") || take("|")) continue;
        type_ = type_of_constant(now);
        now.operand.push_back(operand());
      }
      add(now, op, {name.data(), tokens_[at_ - 1].text.data() + 1});
    } catch (const Fault& fault) {
      const std::string_view last = tokens_[at_ - 1].text;
      throw Fault("line ", first.line, ", '", std::string_view(first.text.data(), last.data() + last.size()),
                  "': ", fault.what());
    }
  }
  /// The type that a constant has as the next operand: that of the instruction, if none is prescribed.
  static Type type_of_constant(const Statement& now) {
    const std::size_t i = now.operand.size();
    const std::string_view name = now.word[0];
    const bool is_word = name == "mbarrier" ||
                         ((name == "shl" || name == "shr" || name == "mapa" || name == "vote") && i >= 2) ||
                         (name == "bfi" && i >= 3);
    return is_word ? "u32" : now.type(name == "cvt" ? 1 : 0);
  }
  void add(const Statement& now, Op& op, std::string_view text) {
    op.cache = kernel_.n_accesses;
    kernel_.operands.emplace_back();
    for (const auto& operand : now.operand) {
      kernel_.operands.back().insert(kernel_.operands.back().end(), operand.at.begin(), operand.at.end());
      if (operand.is_label) branches_.push_back({kernel_.ops.size(), operand.name, scopes_.size()});
      if (!operand.is_address) continue;
      if (operand.offset != 0 && op.cache != kernel_.n_accesses) throw Fault("an offset in the second of two addresses");
      ++kernel_.n_accesses, op.offset += operand.offset;
    }
    decode(now, op);
    kernel_.ops.push_back(op);
    kernel_.text.emplace_back(text);
  }

  Statement::Operand operand() {
    Statement::Operand now;
    if (take("{")) {
      do {
        const auto element = operand();
        now.at.push_back(element.at.at(0)), now.type = element.type;
      } while (take(","));
      expect("}");
    } else if (take("[")) {
      now = operand();
      if (now.at.empty()) throw Fault("an address expected");
      // A constant is all of the address.
      if ((now.at[0] & 1) != 0) now.at[0] = constant(0, 8);
      now.is_address = true;
      if (take("+")) now.offset += number<std::int64_t>();
      while (take(",")) {
        const auto coordinates = operand();
        now.at.insert(now.at.end(), coordinates.at.begin(), coordinates.at.end());
      }
      expect("]");
    } else if (peek().starts_with("0f") || peek().starts_with("0d")) {
      std::uint64_t bits = 0;
      std::from_chars(peek().data() + 2, peek().data() + peek().size(), bits, 16);
      now.at.push_back(constant(bits, next()[1] == 'f' ? 4 : 8));
    } else if (peek()[0] == '-' || std::isdigit(static_cast<unsigned char>(peek()[0])) != 0) {
      // A predicate is the bit of a lane in a word.
      now.offset = number<std::int64_t>();
      now.at.push_back(constant(static_cast<std::uint64_t>(type_ == "pred" && now.offset != 0 ? -1 : now.offset),
                                std::max(bytes_of(type_), 2)));
    } else {
      now.name = next();
      const Symbol* const symbol = find(now.name);
      if (symbol != nullptr) {
        now.offset = symbol->is_address ? symbol->value : 0;
        now.type = symbol->type;
        now.at.push_back(symbol->is_address ? constant(static_cast<std::uint64_t>(symbol->value), bytes_of(type_))
                                            : static_cast<Location>(symbol->value));
      } else if (now.name == "_") {
        now.at.push_back(kNowhere);
      } else {
        now.is_special = now.name.starts_with("%"), now.is_label = !now.is_special;
      }
    }
    return now;
  }
  const Symbol* find(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->names.find(name); found != scope->names.end()) return &found->second;
    }
    return nullptr;
  }
  /// The 32 lanes of a constant of so many bytes.
  Location constant(std::uint64_t bits, int n_bytes) {
    const auto [found, is_new] =
        constants_.try_emplace({bits, n_bytes}, static_cast<Location>(kernel_.constants.size()) | 1);
    const auto size = static_cast<std::size_t>(n_bytes);
    for (std::size_t lane = 0; is_new && lane < 32; ++lane) {
      kernel_.constants.resize(kernel_.constants.size() + size);
      std::memcpy(&kernel_.constants[kernel_.constants.size() - size], &bits, size);
    }
    return found->second;
  }

  /// Branches go to labels of their scope, or of one around it.
  void end_scope() {
    std::erase_if(branches_, [&](Branch& branch) {
      if (branch.depth < scopes_.size()) return false;
      const auto found = scopes_.back().labels.find(branch.label);
      if (found == scopes_.back().labels.end()) return --branch.depth, false;
      return kernel_.ops[branch.op].offset = found->second, true;
    });
    scopes_.pop_back();
    if (scopes_.empty() && !branches_.empty())
      throw Fault("there is no '", std::string(branches_[0].label), "', which line ", kernel_.ops[branches_[0].op].line,
                  " names");
  }

  struct Branch {
    std::size_t op;
    std::string_view label;
    std::size_t depth;
  };
  Kernel& kernel_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  Type type_;  ///< of constants
  std::vector<Scope> scopes_{1};
  std::vector<Branch> branches_;
  std::map<std::pair<std::uint64_t, int>, Location> constants_;
};

}  // namespace

Kernel Module::kernel(const std::string& name) const {
  const std::size_t at = text_.find(".entry " + name + "(");
  if (at == std::string_view::npos) throw Fault("the program has no PTX of it for this device");
  Kernel kernel;
  kernel.name = name;
  Reader reader(kernel);
  constexpr std::string_view kShared = ".extern .shared";
  for (std::size_t shared = text_.find(kShared); shared < at; shared = text_.find(kShared, shared + 1)) {
    const std::vector<Token> words = tokens_of(text_.substr(shared), 1);
    reader.name_shared(words.at(words.size() - 4).text);  // .. name [ ] ;
  }
  reader.read(tokens_of(text_.substr(at), 1 + static_cast<std::uint32_t>(std::count(
                                                  text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'))));
  return kernel;
}

}  // namespace tree_attn::soft_gpu
