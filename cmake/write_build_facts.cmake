# SPDX-License-Identifier: Apache-2.0
# Run before every build: writes OUT (a header) when the commit or the build facts changed.
execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
set(text "#pragma once
namespace segue::core {
inline constexpr char kVersion[] = \"${VERSION}\";
inline constexpr char kCommit[] = \"${commit}\";
inline constexpr char kBuildType[] = \"${BUILD_TYPE}\";
inline constexpr char kCompiler[] = \"${COMPILER}\";
}  // namespace segue::core
")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
