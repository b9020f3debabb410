// SPDX-License-Identifier: Apache-2.0
// Acceptance estimates: the probability that the draft at position j is right, given that those
// before it are, per grade of draft; decaying averages per sequence over a prior that all sequences
// share.
#pragma once
