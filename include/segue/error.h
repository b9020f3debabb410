// SPDX-License-Identifier: Apache-2.0
// Error and Result: how anything that a user or a file can cause is reported. A message names the
// thing, what was found and what is allowed. What the machine causes is an exception (device/),
// what only a bug causes is CHECK (core/check.h); neither belongs here.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace segue {

enum class ErrorCode {
  kUsage,        // a flag or request field has a value that can never work
  kInvalidFile,  // a file is not what it claims to be
  kUnsupported,  // well-formed, but not something this build can run
  kNotFound,     // a file, name or resource does not exist
  kTooLong,      // prompt or length over the context
  kNoMemory,     // a budget (pool, workspace) is too small; the message has the sizes
  kIo,           // reading or writing failed
  kCancelled,    // the caller asked to stop
  kDevice,       // the machine failed: a GPU call, its message says which
};

struct Error {
  ErrorCode code = ErrorCode::kInvalidFile;
  std::string message;
};

/// A value or an Error. Read `value()` only when `ok()`.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return require(), *std::get_if<0>(&state_); }
  const T& value() const& { return require(), *std::get_if<0>(&state_); }
  T value() && { return require(), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return *std::get_if<1>(&state_); }

 private:
  void require() const {
    if (!ok()) std::abort();
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace segue
