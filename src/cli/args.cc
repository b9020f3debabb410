// SPDX-License-Identifier: Apache-2.0
// The only file that includes CLI11.
#include "cli/args.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>
#include <limits>
#include <type_traits>

namespace segue::cli {
namespace {

/// Whole-string parse; CLI11's own conversion would accept "1e3" for some types and "nan" for
/// floats.
template <class T>
std::string parse_number(const std::string& text, T low, T high, T& out) {
  T value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = problem == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= low && value <= high)) {
    return fmt::format("'{}' is not allowed; allowed: {}{} to {}", text,
                       std::is_integral_v<T> ? "whole numbers from " : "", low, high);
  }
  out = value;
  return {};
}

template <class T>
std::string parse_numbers(const std::string& text, T low, T high, bool repeats,
                          std::vector<T>& out) {
  out.clear();
  std::size_t begin = 0;
  for (;;) {
    const std::size_t comma = text.find(',', begin);
    T value{};
    std::string problem = parse_number(text.substr(begin, comma - begin), low, high, value);
    if (!problem.empty()) return problem;
    if (!repeats && std::find(out.begin(), out.end(), value) != out.end())
      return fmt::format("'{}' has {} twice", text, value);
    out.push_back(value);
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

  /// A flag whose text `read` turns into a value; `read` returns what is wrong with it.
  template <class F>
  void value(std::string_view names, std::string_view help, const std::string& shown_default,
             F read) {
    CLI::Option* option = app.add_option_function<std::string>(
        std::string(names),
        [this, read, flag = std::string(names)](const std::string& text) {
          const std::string wrong = read(text);
          if (!wrong.empty() && problem.empty()) {
            problem = fmt::format("{}: {}", flag, wrong);
          }
        },
        shown_default.empty() ? std::string(help)
                              : fmt::format("{} (default {})", help, shown_default));
    option->type_name("");
  }
};

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
  impl_->app.add_flag(std::string(names), target, std::string(help));
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

Args& Args::texts(std::string_view names, std::vector<std::string>& target, std::string_view help) {
  impl_->app.add_option(std::string(names), target, std::string(help))
      ->type_name("")
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
  impl_->value(names, fmt::format("{}: {}", help, fmt::join(allowed, ", ")), target,
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

Args& Args::integer(std::string_view names, std::int64_t& target, std::int64_t low,
                    std::int64_t high, std::string_view help) {
  impl_->value(names, help, std::to_string(target), [&target, low, high](const std::string& text) {
    return parse_number(text, low, high, target);
  });
  return *this;
}

Args& Args::integer(std::string_view names, int& target, int low, int high, std::string_view help) {
  impl_->value(names, help, std::to_string(target), [&target, low, high](const std::string& text) {
    return parse_number(text, low, high, target);
  });
  return *this;
}

Args& Args::seed(std::string_view names, std::uint64_t& target, std::string_view help) {
  impl_->value(names, help, std::to_string(target), [&target](const std::string& text) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();  // what JSON holds
    return parse_number(text, std::uint64_t{0}, kMost, target);
  });
  return *this;
}

Args& Args::real(std::string_view names, float& target, double low, double high,
                 std::string_view help) {
  impl_->value(names, help, fmt::format("{}", target),
               [&target, low, high](const std::string& text) {
                 double value = target;
                 std::string problem = parse_number(text, low, high, value);
                 target = static_cast<float>(value);
                 return problem;
               });
  return *this;
}

Args& Args::integers(std::string_view names, std::vector<std::int64_t>& target, std::int64_t low,
                     std::int64_t high, std::string_view help) {
  impl_->value(names, help, fmt::format("{}", fmt::join(target, ",")),
               [&target, low, high](const std::string& text) {
                 return parse_numbers(text, low, high, false, target);
               });
  return *this;
}

Args& Args::reals(std::string_view names, std::vector<double>& target, double low, double high,
                  std::string_view help) {
  impl_->value(names, help, fmt::format("{}", fmt::join(target, ",")),
               [&target, low, high](const std::string& text) {
                 return parse_numbers(text, low, high, true, target);
               });
  return *this;
}

Args& Args::list(std::string_view names, std::vector<std::string>& target, std::string_view help) {
  impl_->value(
      names, help, fmt::format("{}", fmt::join(target, ",")), [&target](const std::string& text) {
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
    return Error{ErrorCode::kUsage,
                 fmt::format("{} (see {} --help)", problem.what(), impl_->app.get_name())};
  }
  if (!impl_->problem.empty()) return Error{ErrorCode::kUsage, impl_->problem};
  return true;
}

bool Args::given(std::string_view name) const { return impl_->app.count(std::string(name)) > 0; }

}  // namespace segue::cli
