// What each command does: reads its arguments, prints its result, returns the exit status (cli/exit_code.h).
#pragma once

#include "cli/command_line.h"
#include "cli/console.h"

namespace fusion::cli {

int RunCommand(const Invocation& invocation, Console& console);
int PlanCommand(const Invocation& invocation, Console& console);
int ValidateCommand(const Invocation& invocation, Console& console);
int GetCommand(const Invocation& invocation, Console& console);
int GraphCommand(const Invocation& invocation, Console& console);
int ProfileCommand(const Invocation& invocation, Console& console);
int VersionCommand(const Invocation& invocation, Console& console);
int CompletionCommand(const Invocation& invocation, Console& console);

}  // namespace fusion::cli
