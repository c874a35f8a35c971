// The files of -f, checked as `run` needs them.
#pragma once

#include <string>
#include <vector>

#include "cli/console.h"
#include "proto/manifest.h"

namespace fusion::cli {

/// What a command needs in the files, beyond sound objects.
struct InputNeeds {
  bool compnodes = true;  ///< at least one, to place stages on
  bool data = true;       ///< the files that jobs read are there
};

/// Reads and checks the files and what they name. Everything wrong is in `errors` of the result.
api::Manifest LoadInputs(const std::vector<std::string>& files, const InputNeeds& needs);

/// One line an error, then how many.
void PrintErrors(const std::vector<api::ManifestError>& errors, Console& console);

}  // namespace fusion::cli
