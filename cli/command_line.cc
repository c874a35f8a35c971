// CLI11 costs seconds a translation unit: it stays here.
#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/exit_code.h"

namespace fusion::cli {
namespace {

constexpr char kDescription[] =
    "Trains deep networks over machines that are far apart and unequal: plans a model's operators onto "
    "compnodes and runs them.";

std::string Footer(const CommandDefinition& command) {
  return absl::StrCat("\nExamples:\n  ", absl::StrJoin(command.examples, "\n  "));
}

std::string Names(const OptionDefinition& option) {
  return absl::StrCat(option.letter == 0 ? "" : absl::StrCat("-", std::string(1, option.letter), ","), "--",
                      option.name);
}

/// Where CLI11 puts what it reads of one command.
struct Target {
  CLI::App* app = nullptr;
  std::map<std::string, CLI::Option*> options;
  std::map<std::string, std::vector<std::string>> values;
  std::string argument;
  std::vector<std::string> rest;
};

void AddOption(const OptionDefinition& definition, Target* target) {
  CLI::Option* option = nullptr;
  if (definition.value.empty()) {
    option = target->app->add_flag(Names(definition), definition.description);
  } else {
    option =
        target->app->add_option(Names(definition), target->values[definition.name], definition.description);
    option->type_name(definition.choices.empty() ? definition.value : absl::StrJoin(definition.choices, "|"));
    // One value each time, so that an option never takes a positional argument for its own.
    option->allow_extra_args(false)->expected(1, definition.repeats ? 1000 : 1);
    if (!definition.repeats) option->multi_option_policy(CLI::MultiOptionPolicy::Throw)->expected(1);
    if (!definition.choices.empty()) option->check(CLI::IsMember(definition.choices).description(""));
  }
  if (definition.required) option->required();
  target->options[definition.name] = option;
}

std::unique_ptr<Target> AddCommand(const CommandDefinition& command, CLI::App* root) {
  auto target = std::make_unique<Target>();
  target->app = root->add_subcommand(command.name, command.summary);
  target->app->description(command.description);
  target->app->footer(Footer(command));
  target->app->set_help_flag("-h,--help", "print this help");
  for (const OptionDefinition& option : command.options) AddOption(option, target.get());
  if (!command.argument.empty()) {
    target->app->add_option(command.argument, target->argument, "what to show")
        ->required()
        ->type_name(absl::StrJoin(command.argument_choices, "|"))
        ->check(CLI::IsMember(command.argument_choices).description(""));
  }
  if (!command.rest.empty()) {
    target->app->add_option(command.rest, target->rest, "only these")->type_name("")->expected(0, 1000);
  }
  return target;
}

/// The list of commands: CLI11's would repeat the long descriptions.
std::string RootHelp() {
  std::string text = absl::StrCat(kDescription, "\nUsage: fusionctl COMMAND [OPTIONS]\n\nCommands:\n");
  for (const CommandDefinition& command : Commands()) {
    absl::StrAppend(&text, "  ", command.name, std::string(14 - command.name.size(), ' '), command.summary,
                    "\n");
  }
  absl::StrAppend(
      &text,
      "\nExamples:\n  fusionctl run -f examples/gpt2-two-sites.yaml\n  fusionctl plan -f job.yaml "
      "--compare\n",
      "\nfusionctl COMMAND --help says more of a command.\n",
      "Exit status: 0; 1 a job failed or nothing fits; 2 invalid input or usage; 130 after Ctrl-C.\n");
  return text;
}

}  // namespace

std::string Invocation::Get(const std::string& option, const std::string& otherwise) const {
  const auto found = options.find(option);
  return found == options.end() || found->second.empty() ? otherwise : found->second.front();
}

std::vector<std::string> Invocation::All(const std::string& option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::vector<std::string>() : found->second;
}

std::variant<Invocation, Answer> ParseCommandLine(int argc, const char* const* argv) {
  CLI::App root(kDescription, "fusionctl");
  root.set_help_flag("-h,--help", "print this help");
  std::vector<std::unique_ptr<Target>> targets;
  for (const CommandDefinition& command : Commands()) targets.push_back(AddCommand(command, &root));
  const auto selected = [&]() -> const CommandDefinition* {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i]->app->parsed()) return &Commands()[i];
    }
    return nullptr;
  };
  try {
    root.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    for (const auto& target : targets) {
      if (target->app->parsed()) return Answer{target->app->help("fusionctl"), kSuccess};
    }
    return Answer{RootHelp(), kSuccess};
  } catch (const CLI::ParseError& error) {
    const CommandDefinition* command = selected();
    return Answer{absl::StrCat(error.what(), "; see fusionctl ",
                               command == nullptr ? "" : command->name + " ", "--help"),
                  kInvalid};
  }
  const CommandDefinition* command = selected();
  if (command == nullptr) return Answer{"a command is missing; see fusionctl --help", kInvalid};
  Target& target = *targets[static_cast<size_t>(command - Commands().data())];
  Invocation invocation;
  invocation.command = command;
  invocation.argument = target.argument;
  invocation.rest = target.rest;
  for (const auto& [name, option] : target.options) {
    if (option->count() > 0) invocation.options[name] = target.values[name];
  }
  return invocation;
}

}  // namespace fusion::cli
