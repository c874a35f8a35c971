// fusion-manifests DESCRIPTOR_SET ROOT: writes crds/ and docs/api.md below ROOT.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "proto/manifests/manifests.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: fusion-manifests DESCRIPTOR_SET ROOT\n";
    return 2;
  }
  std::ifstream input(argv[1], std::ios::binary);
  const std::string set{std::istreambuf_iterator<char>(input), {}};
  const auto files = fusion::api::GenerateManifests(set);
  if (!files.ok()) {
    std::cerr << argv[1] << ": " << files.status().message() << "\n";
    return 1;
  }
  for (const auto& [name, text] : *files) {
    const std::filesystem::path path = std::filesystem::path(argv[2]) / name;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (!(std::ofstream(path, std::ios::binary) << text).flush()) {
      std::cerr << path.string() << ": cannot be written\n";
      return 1;
    }
  }
  return 0;
}
