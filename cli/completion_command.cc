#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/commands.h"
#include "cli/exit_code.h"

namespace fusion::cli {
namespace {

/// Words that may follow a command: its options and the values of its argument.
std::vector<std::string> WordsAfter(const CommandDefinition& command) {
  std::vector<std::string> words = command.argument_choices;
  for (const OptionDefinition& option : command.options) {
    words.push_back(absl::StrCat("--", option.name));
    if (option.letter != 0) words.push_back(absl::StrCat("-", std::string(1, option.letter)));
  }
  words.emplace_back("--help");
  return words;
}

std::string CommandNames() {
  return absl::StrJoin(Commands(), " ",
                       [](std::string* out, const CommandDefinition& command) { *out += command.name; });
}

std::string Bash() {
  std::string cases;
  for (const CommandDefinition& command : Commands()) {
    absl::StrAppend(&cases, "    ", command.name, ")\n      case $previous in\n");
    for (const OptionDefinition& option : command.options) {
      if (option.value.empty() && option.choices.empty()) continue;
      const std::string names = option.letter == 0
                                    ? absl::StrCat("--", option.name)
                                    : absl::StrCat("--", option.name, "|-", std::string(1, option.letter));
      const std::string words = !option.choices.empty()
                                    ? absl::StrCat("-W \"", absl::StrJoin(option.choices, " "), "\"")
                                : option.value == "FOLDER" ? "-d"
                                                           : "-f";
      absl::StrAppend(&cases, "        ", names, ") COMPREPLY=($(compgen ", words,
                      " -- \"$word\")); return ;;\n");
    }
    absl::StrAppend(&cases, "      esac\n      words=\"", absl::StrJoin(WordsAfter(command), " "), "\" ;;\n");
  }
  return absl::StrCat(
      "# bash completion of fusionctl\n"
      "_fusionctl() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words\n"
      "  compopt -o filenames 2>/dev/null\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W \"",
      CommandNames(),
      " --help\" -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n",
      cases,
      "    *) return ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "}\n"
      "complete -F _fusionctl fusionctl kubectl-fusion\n");
}

/// Quoted for zsh's _arguments and _describe, inside of single quotes.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {":", "\\:"}, {"[", "\\["}, {"]", "\\]"}});
}

std::string Zsh() {
  std::string names;
  std::string cases;
  for (const CommandDefinition& command : Commands()) {
    absl::StrAppend(&names, "    '", command.name, ":", ZshText(command.summary), "'\n");
    absl::StrAppend(&cases, "    ", command.name, ")\n      _arguments");
    for (const OptionDefinition& option : command.options) {
      const std::string action = option.value.empty() ? ""
                                 : !option.choices.empty()
                                     ? absl::StrCat(":format:(", absl::StrJoin(option.choices, " "), ")")
                                 : option.value == "FOLDER" ? ":folder:_files -/"
                                                            : ":file:_files";
      const std::string text = absl::StrCat("[", ZshText(option.description), "]", action, "'");
      absl::StrAppend(&cases, " \\\n        '", option.repeats ? "*" : "", "--", option.name, text);
      if (option.letter != 0) {
        absl::StrAppend(&cases, " \\\n        '", option.repeats ? "*" : "", "-",
                        std::string(1, option.letter), text);
      }
    }
    if (!command.argument.empty()) {
      absl::StrAppend(&cases, " \\\n        '1:", command.argument, ":(",
                      absl::StrJoin(command.argument_choices, " "), ")'");
    }
    absl::StrAppend(&cases, " \\\n        '--help[print help]' ;;\n");
  }
  return absl::StrCat(
      "#compdef fusionctl kubectl-fusion\n"
      "_fusionctl() {\n"
      "  local -a commands\n"
      "  commands=(\n",
      names,
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $command in\n",
      cases,
      "  esac\n"
      "}\n"
      "if [[ $funcstack[1] == _fusionctl ]]; then _fusionctl \"$@\"; else compdef _fusionctl fusionctl "
      "kubectl-fusion; fi\n");
}

std::string FishText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}});
}

std::string Fish() {
  std::string out = "# fish completion of fusionctl\ncomplete -c fusionctl -f\n";
  for (const CommandDefinition& command : Commands()) {
    absl::StrAppend(&out, "complete -c fusionctl -n __fish_use_subcommand -a ", command.name, " -d '",
                    FishText(command.summary), "'\n");
    const std::string prefix =
        absl::StrCat("complete -c fusionctl -n '__fish_seen_subcommand_from ", command.name, "'");
    if (!command.argument.empty()) {
      absl::StrAppend(&out, prefix, " -a '", absl::StrJoin(command.argument_choices, " "), "'\n");
    }
    for (const OptionDefinition& option : command.options) {
      const std::string value = option.value.empty() ? ""
                                : !option.choices.empty()
                                    ? absl::StrCat(" -x -a '", absl::StrJoin(option.choices, " "), "'")
                                : option.value == "FOLDER" ? " -x -a '(__fish_complete_directories)'"
                                                           : " -r -F";
      absl::StrAppend(&out, prefix, " -l ", option.name,
                      option.letter == 0 ? "" : absl::StrCat(" -s ", std::string(1, option.letter)), value,
                      " -d '", FishText(option.description), "'\n");
    }
  }
  return out;
}

}  // namespace

int CompletionCommand(const Invocation& invocation, Console& console) {
  const std::string& shell = invocation.argument;
  console.out << (shell == "bash" ? Bash() : shell == "zsh" ? Zsh() : Fish());
  return kSuccess;
}

}  // namespace fusion::cli
