// SPDX-License-Identifier: Apache-2.0
// The only file that includes CLI11.
#include "cli/args.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <optional>

namespace segue::cli {
namespace {

/// Whole-string parse; CLI11's own conversion would accept "1e3" for some types and "nan" for
/// floats. Nothing when `text` is none of the range.
template <class T>
std::optional<T> parse_number(std::string_view text, const Range<T>& range) {
  T value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = problem == std::errc() && end == text.data() + text.size();
  if (whole && range.has(value)) return value;
  return {};
}

template <class T>
std::string parse_numbers(const std::string& text, const Range<T>& range, bool repeats,
                          std::vector<T>& out) {
  out.clear();
  std::size_t begin = 0;
  for (;;) {
    const std::size_t comma = text.find(',', begin);
    const std::string part = text.substr(begin, comma - begin);
    const std::optional<T> value = parse_number(part, range);
    if (!value) return range.refusal(fmt::format("'{}'", part));
    if (!repeats && std::find(out.begin(), out.end(), *value) != out.end())
      return fmt::format("'{}' has {} twice", text, *value);
    out.push_back(*value);
    if (comma == std::string::npos) return {};
    begin = comma + 1;
  }
}

std::string not_empty_path(const std::string& value) {
  return value.empty() ? "needs a file name, found an empty one" : "";
}

}  // namespace

struct Args::Impl {
  CLI::App app;
  std::string problem;  // of a value, with the flag's name

  /// A flag whose text `read` turns into a value; `read` returns what is wrong with it. --help
  /// shows `allowed` and the default where they are not empty.
  template <class F>
  void value(std::string_view names, std::string_view help, const std::string& allowed,
             const std::string& shown_default, F read) {
    std::string notes = allowed;
    if (!shown_default.empty())
      notes += fmt::format("{}default {}", notes.empty() ? "" : "; ", shown_default);
    CLI::Option* option = app.add_option_function<std::string>(
        std::string(names),
        [this, read, flag = std::string(names)](const std::string& text) {
          const std::string wrong = read(text);
          if (!wrong.empty() && problem.empty()) {
            problem = fmt::format("{}: {}", flag, wrong);
          }
        },
        notes.empty() ? std::string(help) : fmt::format("{} ({})", help, notes));
    option->type_name("");
  }

  template <class T, class Bound>
  void number(std::string_view names, T& target, const Range<Bound>& range, std::string_view help) {
    value(names, help, range.text(), fmt::format("{}", target),
          [&target, range](const std::string& text) -> std::string {
            const std::optional<Bound> parsed = parse_number(text, range);
            if (!parsed) return range.refusal(fmt::format("'{}'", text));
            target = static_cast<T>(*parsed);
            return {};
          });
  }

  template <class T>
  void numbers(std::string_view names, std::vector<T>& target, const Range<T>& range, bool repeats,
               std::string_view help) {
    value(names, help, fmt::format("each {}", range.text()),
          fmt::format("{}", fmt::join(target, ",")),
          [&target, range, repeats](const std::string& text) {
            return parse_numbers(text, range, repeats, target);
          });
  }

  /// What CLI11 says of a command line, in our words.
  std::string reworded(const CLI::ParseError& problem) const;
};

std::string Args::Impl::reworded(const CLI::ParseError& error) const {
  const std::string said = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extra = app.remaining();
    for (const std::string& word : extra) {  // what follows an unknown flag is left over too
      if (word.starts_with('-')) return fmt::format("there is no flag '{}'", word);
    }
    return extra.empty() ? said : fmt::format("'{}' belongs to no flag", extra.front());
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return said;
  // It begins with the name of the option, that of a flag without its dashes.
  std::string name = said.substr(0, said.find_first_of(": "));
  if (!name.starts_with('-')) name = "--" + name;
  const CLI::Option* const option = app.get_option_no_throw(name);
  if (option == nullptr) return said;
  const auto given = static_cast<int>(option->count());
  if (option->get_expected_max() == 0) return fmt::format("{} takes no value", name);
  if (given > option->get_expected_max()) {
    return fmt::format("{} is given {} times; allowed: once", name, given);
  }
  return fmt::format("{} needs a value (one that begins with '-' is written {}=VALUE)", name, name);
}

Args::Args(std::string_view command, std::string_view summary,
           const std::vector<std::string>& examples)
    : impl_(std::make_unique<Impl>()) {
  impl_->app.name(fmt::format("segue {}", command));
  impl_->app.description(std::string(summary));
  impl_->app.footer(examples.empty()
                        ? std::string()
                        : fmt::format("Examples:\n  {}\n", fmt::join(examples, "\n  ")));
  impl_->app.get_formatter()->column_width(34);
}

Args::~Args() = default;

Args& Args::flag(std::string_view names, bool& target, std::string_view help) {
  impl_->app.add_flag(std::string(names), target, std::string(help))->disable_flag_override();
  return *this;
}

Args& Args::text(std::string_view names, std::string& target, std::string_view help,
                 bool required) {
  CLI::Option* option = impl_->app.add_option(std::string(names), target, std::string(help));
  option->type_name("");
  if (required) option->required();
  return *this;
}

Args& Args::path(std::string_view names, std::string& target, std::string_view help,
                 bool required) {
  text(names, target, help, required);
  impl_->app.get_options().back()->check(not_empty_path);
  return *this;
}

Args& Args::texts(std::string_view names, std::vector<std::string>& target, std::string_view help,
                  bool required) {
  impl_->app.add_option(std::string(names), target, std::string(help))
      ->type_name("")
      ->required(required)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all()
      ->check([](const std::string& value) {
        return value.empty() ? std::string("needs a text, found an empty one") : std::string();
      });
  return *this;
}

Args& Args::choice(std::string_view names, std::string& target,
                   const std::vector<std::string>& allowed, std::string_view help) {
  impl_->value(names, help, fmt::format("{}", fmt::join(allowed, ", ")), target,
               [&target, allowed](const std::string& text) -> std::string {
                 if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
                   return fmt::format("'{}' is not allowed; allowed: {}", text,
                                      fmt::join(allowed, ", "));
                 }
                 target = text;
                 return {};
               });
  return *this;
}

Args& Args::integer(std::string_view names, std::int64_t& target, const Range<std::int64_t>& range,
                    std::string_view help) {
  impl_->number(names, target, range, help);
  return *this;
}

Args& Args::integer(std::string_view names, int& target, const Range<int>& range,
                    std::string_view help) {
  impl_->number(names, target, range, help);
  return *this;
}

Args& Args::seed(std::string_view names, std::uint64_t& target, std::string_view help) {
  impl_->number(names, target, ranges::kSeed, help);
  return *this;
}

Args& Args::real(std::string_view names, float& target, const Range<double>& range,
                 std::string_view help) {
  impl_->number(names, target, range, help);
  return *this;
}

Args& Args::integers(std::string_view names, std::vector<std::int64_t>& target,
                     const Range<std::int64_t>& range, std::string_view help) {
  impl_->numbers(names, target, range, false, help);
  return *this;
}

Args& Args::reals(std::string_view names, std::vector<double>& target, const Range<double>& range,
                  std::string_view help) {
  impl_->numbers(names, target, range, true, help);
  return *this;
}

Args& Args::list(std::string_view names, std::vector<std::string>& target, std::string_view help) {
  impl_->value(
      names, help, "", fmt::format("{}", fmt::join(target, ",")),
      [&target](const std::string& text) {
        target.clear();
        for (std::size_t begin = 0;;) {
          const std::size_t comma = text.find(',', begin);
          target.push_back(text.substr(begin, comma - begin));
          if (target.back().empty()) return fmt::format("'{}' has an empty entry", text);
          if (std::find(target.begin(), target.end() - 1, target.back()) != target.end() - 1)
            return fmt::format("'{}' has {} twice", text, target.back());
          if (comma == std::string::npos) return std::string();
          begin = comma + 1;
        }
      });
  return *this;
}

Args& Args::positional(std::string_view name, std::string& target, std::string_view help) {
  impl_->app.add_option(std::string(name), target, std::string(help))
      ->type_name("")
      ->required()
      ->check(not_empty_path);
  return *this;
}

Result<bool> Args::parse(int argc, const char* const* argv) {
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << impl_->app.help();
    return false;
  } catch (const CLI::ParseError& problem) {
    return Error{ErrorCode::kUsage, fmt::format("{} (see {} --help)", impl_->reworded(problem),
                                                impl_->app.get_name())};
  }
  if (!impl_->problem.empty()) return Error{ErrorCode::kUsage, impl_->problem};
  return true;
}

bool Args::given(std::string_view name) const { return impl_->app.count(std::string(name)) > 0; }

}  // namespace segue::cli
