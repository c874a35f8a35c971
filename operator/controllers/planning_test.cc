#include "operator/controllers/planning.h"

#include <initializer_list>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fusion::op {
namespace {

using v1alpha1::Compnode;

constexpr int kCores = 2;
constexpr double kMachine = 50e9;  // so the limit is 60e9

std::vector<Compnode> Emulated(std::initializer_list<double> flops) {
  std::vector<Compnode> compnodes;
  for (const double speed : flops) {
    compnodes.emplace_back().mutable_spec()->mutable_emulation()->set_flops(speed);
  }
  return compnodes;
}

TEST(CheckEmulation, RefusesWhatTheMachineCannotImitate) {
  EXPECT_TRUE(CheckEmulation(Emulated({40e9, 20e9}), kCores, kMachine).ok());
  const absl::Status status = CheckEmulation(Emulated({40e9, 40e9}), kCores, kMachine);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              ::testing::HasSubstr("sum up to 8e+10 FLOP/s, but this machine can imitate at most "
                                   "6e+10 (0.6 x 2 cores x 5e+10 FLOP/s of one thread)"));
}

TEST(FitEmulation, LeavesAloneWhatFits) {
  std::vector<Compnode> compnodes = Emulated({40e9, 20e9});
  EXPECT_EQ(FitEmulation(kCores, kMachine, compnodes), 1);
  EXPECT_EQ(compnodes[0].spec().emulation().flops(), 40e9);
}

TEST(FitEmulation, ScalesAllByOneFactorOfTwoDigits) {
  std::vector<Compnode> compnodes = Emulated({70e9, 20e9});
  compnodes.emplace_back();  // a real one
  EXPECT_DOUBLE_EQ(FitEmulation(kCores, kMachine, compnodes), 0.66) << "60/90, rounded down";
  EXPECT_DOUBLE_EQ(compnodes[0].spec().emulation().flops(), 70e9 * 0.66);
  EXPECT_DOUBLE_EQ(compnodes[1].spec().emulation().flops(), 20e9 * 0.66);
  EXPECT_FALSE(compnodes[2].spec().has_emulation());
  EXPECT_TRUE(CheckEmulation(compnodes, kCores, kMachine).ok());
  std::vector<Compnode> far = Emulated({9e12});
  EXPECT_DOUBLE_EQ(FitEmulation(kCores, kMachine, far), 0.0066);
  EXPECT_TRUE(CheckEmulation(far, kCores, kMachine).ok());
}

}  // namespace
}  // namespace fusion::op
