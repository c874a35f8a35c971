// The commands of fusionctl as data: arguments, help and shell completion are made from it.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "cli/console.h"

namespace fusion::cli {

struct Invocation;

struct OptionDefinition {
  std::string name;  ///< without dashes
  char letter = 0;   ///< 0: none
  std::string description;
  std::string value;                 ///< FILE, FOLDER; empty with no choices: a flag
  std::vector<std::string> choices;  ///< the values it takes
  bool required = false;
  bool repeats = false;
};

struct CommandDefinition {
  std::string name;
  std::string summary;      ///< a line
  std::string description;  ///< sentences
  std::vector<std::string> examples;
  std::string argument;                       ///< of a positional argument, in capitals; empty: none
  std::vector<std::string> argument_choices;  ///< the values that it takes
  std::string rest;                           ///< of further positional arguments; empty: none
  std::vector<OptionDefinition> options;
  int (*run)(const Invocation&, Console&);
};

const std::vector<CommandDefinition>& Commands();

/// A command with its arguments.
struct Invocation {
  const CommandDefinition* command = nullptr;
  std::string argument;
  std::vector<std::string> rest;
  std::map<std::string, std::vector<std::string>> options;  ///< those given, by name; flags without values

  bool Has(const std::string& option) const { return options.contains(option); }
  std::string Get(const std::string& option, const std::string& otherwise) const;
  std::vector<std::string> All(const std::string& option) const;
};

/// Text to print instead of running a command.
struct Answer {
  std::string text;
  int exit_code = 0;  ///< 0: help, to standard output; else an error
};

std::variant<Invocation, Answer> ParseCommandLine(int argc, const char* const* argv);

}  // namespace fusion::cli
