// SPDX-License-Identifier: Apache-2.0
// What commands share with the person or script at the other end: progress, interrupts, JSON files.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/json.h"
#include "segue/error.h"

namespace segue::cli {

/// A progress bar on stderr, where that is no terminal a line a minute; silent when
/// `quiet`.
std::function<void(double fraction)> progress_bar(std::string_view what, bool quiet);

/// Set by the first Ctrl-C; a second one, unless it is right behind, ends the program at once.
/// Installs the handler when first called.
const std::atomic<bool>& interrupted();

/// As if Ctrl-C had not been pressed.
void forget_interrupt();

/// The signal that interrupted the program, or 0.
int interrupting_signal();

/// What a message calls a file that is read: 'PATH', or standard input for "-".
std::string input_name(const std::string& path);

/// Writes a document to `path` ("-": standard output); nothing to do when `path` is empty.
Status write_json(const std::string& path, const core::Json& document);

/// The same with settings, machine and build.
Status write_with_settings(const std::string& path, core::Json document, core::Json settings);

/// The end of a command that measured: the table for people, unless the document itself goes to
/// standard output, a word on stderr when the document says that it was interrupted, and the
/// document, with settings, machine and build, in the file `json`.
Status finish_measurement(const std::string& json, bool quiet, core::Json document,
                          core::Json settings, const std::string& table);

/// Checks before long work that `path` will be writable, and leaves nothing behind; empty is fine,
/// and so is a pipe, which may have no reader yet.
Status check_writable(const std::string& path);

struct NamedPath {
  std::string flag;  // as the message calls it: "--json"
  std::string path;  // empty: not given
};

/// kUsage when an output is the same file as an input or another output, or a file of a model whose
/// folder is an input: it would be destroyed.
Status check_distinct(std::span<const NamedPath> inputs, std::span<const NamedPath> outputs);

}  // namespace segue::cli
