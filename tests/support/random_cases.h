// How many random cases a test of its own loop runs. RapidCheck's are set by RC_PARAMS in the Makefile.
#pragma once

namespace fusion {

/// `cases`, or a tenth under the sanitizers, where a case costs ten times as much.
constexpr int RandomCases(int cases) {
#ifdef FUSION_SANITIZED
  return cases / 10;
#else
  return cases;
#endif
}

}  // namespace fusion
