// SPDX-License-Identifier: Apache-2.0
#include "speculate/ngram_drafter.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace segue::speculate {
namespace {

std::uint64_t hash_of(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (const std::int32_t token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xd6e8feb86659fd93ull;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

void NgramDrafter::Index::put(std::uint64_t hash, std::int32_t end) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  while (slots_[i].end != 0 && slots_[i].hash != hash) i = (i + 1) & mask;
  if (slots_[i].end == 0) ++used_;
  slots_[i] = {hash, end};
}

std::int32_t NgramDrafter::Index::find(std::uint64_t hash) const {
  if (slots_.empty()) return -1;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash & mask; slots_[i].end != 0; i = (i + 1) & mask) {
    if (slots_[i].hash == hash) return slots_[i].end;
  }
  return -1;
}

void NgramDrafter::Index::grow() {
  std::vector<Slot> old(std::max<std::size_t>(1024, 2 * slots_.size()), Slot{0, 0});
  std::swap(old, slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.end == 0) continue;
    std::size_t i = slot.hash & mask;
    while (slots_[i].end != 0) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

NgramDrafter::NgramDrafter(NgramOptions options) : options_(options) {
  CHECK(1 <= options.shortest && options.shortest <= options.longest && options.longest <= 16);
}

/// The sequence's text with everything of `context` indexed.
NgramDrafter::Text& NgramDrafter::text_of(std::int64_t sequence,
                                          std::span<const std::int32_t> context) {
  Text& text = texts_[sequence];
  text.indexes.resize(static_cast<std::size_t>(options_.longest - options_.shortest + 1));
  // An n-gram is worth finding only once a token follows it, so the newest token ends none yet.
  const auto limit = static_cast<std::int64_t>(context.size()) - 1;
  for (std::int64_t end = text.indexed + 1; end <= limit; ++end) {
    for (int n = options_.shortest; n <= options_.longest && n <= end; ++n) {
      const auto gram =
          context.subspan(static_cast<std::size_t>(end - n), static_cast<std::size_t>(n));
      text.indexes[static_cast<std::size_t>(n - options_.shortest)].put(
          hash_of(gram), static_cast<std::int32_t>(end));
    }
  }
  text.indexed = std::max(text.indexed, limit);
  return text;
}

void NgramDrafter::prepare(std::int64_t sequence, std::span<const std::int32_t> context) {
  text_of(sequence, context);
}

Draft NgramDrafter::look_up(const Text& text, std::span<const std::int32_t> context,
                            std::span<std::int32_t> out) const {
  if (out.empty()) return {};
  const auto size = static_cast<std::int64_t>(context.size());
  for (int n = static_cast<int>(std::min<std::int64_t>(options_.longest, size));
       n >= options_.shortest; --n) {
    const auto suffix = context.last(static_cast<std::size_t>(n));
    const std::int64_t end =
        text.indexes[static_cast<std::size_t>(n - options_.shortest)].find(hash_of(suffix));
    if (end < 0) continue;
    const auto found =
        context.subspan(static_cast<std::size_t>(end - n), static_cast<std::size_t>(n));
    if (!std::equal(found.begin(), found.end(), suffix.begin()))
      continue;  // another n-gram with this hash
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t source = static_cast<std::size_t>(end) + i;
      out[i] = source < context.size() ? context[source] : out[source - context.size()];
    }
    const int grade = n == options_.longest ? kDraftGrades - 1 : n == options_.shortest ? 0 : 1;
    return {static_cast<int>(out.size()), grade};
  }
  return {};
}

void NgramDrafter::draft(std::span<DraftJob> jobs) {
  for (DraftJob& job : jobs) {
    job.draft = look_up(text_of(job.sequence, job.context), job.context, job.out);
  }
}

/// The index holds tokens that may no longer be there.
void NgramDrafter::rewind(std::int64_t sequence, std::int64_t /*tokens*/) {
  texts_.erase(sequence);
}

void NgramDrafter::fork(std::int64_t from, std::int64_t to) {
  if (const auto found = texts_.find(from); found != texts_.end()) {
    const Text copy = found->second;
    texts_.insert_or_assign(to, copy);
  }
}

}  // namespace segue::speculate
