#include <csignal>
#include <ostream>
#include <variant>

#include "cli/command_line.h"
#include "cli/console.h"

int main(int argc, char** argv) {
  using namespace fusion::cli;
  std::signal(SIGPIPE, SIG_IGN);
  Console console = Console::Standard();
  const auto parsed = ParseCommandLine(argc, argv);
  if (const auto* answer = std::get_if<Answer>(&parsed)) {
    if (answer->exit_code == 0) {
      console.out << answer->text;
    } else {
      console.Error(answer->text);
    }
    return answer->exit_code;
  }
  const auto& invocation = std::get<Invocation>(parsed);
  const int exit_code = invocation.command->run(invocation, console);
  console.out.flush();
  return exit_code;
}
