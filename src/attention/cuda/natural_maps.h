// SPDX-License-Identifier: Apache-2.0
// Tensor maps over caches, so that the copy engine puts pages of natural layouts (token-major and
// head-major) into shared memory in the order of the tiled layout, or a part of the dims of a page.
#pragma once

#include "attention/cuda/arguments.h"
#include "kv/view.h"
#include "segue/error.h"

namespace segue::attention::cuda {

/// kUsage where the strides of a cache (multiples of 16 bytes) have no map: rows of a page lie
/// token_stride apart, pages and heads whole groups of eight rows, heads of a token whole lines.
Status check_maps(const kv::View& view);

/// Fills the maps and the fields of `args` that say how pages and heads become coordinates. A
/// layer's tensor is [groups of eight tokens][lines of 64 dims][8 tokens][64 dims]: rows of a page
/// lie token_stride apart, and pages (and heads, in head-major caches) a multiple of eight rows. A
/// copy brings `args.piece` tokens and `block_dims` dims of one head. `args.pages` and
/// `args.page_size` are set.
void describe_maps(const kv::View& view, int block_dims, Arguments& args, NaturalMaps& maps);

}  // namespace segue::attention::cuda
