// Exit statuses of fusionctl.
#pragma once

namespace fusion::cli {

enum ExitCode : int {
  kSuccess = 0,
  kFailed = 1,        ///< a job failed, or no plan fits
  kInvalid = 2,       ///< invalid input, missing data, wrong usage
  kInterrupted = 130  ///< after Ctrl-C
};

}  // namespace fusion::cli
