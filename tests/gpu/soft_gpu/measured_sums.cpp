// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Both models of sums inside tensor cores against sums that others measured on cards and published.
///
/// Run: measured_sums FOLDER      model_validation of github.com/north-numerical-computing/MATLAB-tensor-core
/// Prints a line for each device and type; exit status 1 if a sum differs. The folder has, for each, a line per sum: the 8
/// or 16 elements of a and of b, widened, in hexadecimal digits, c and the sum in binary digits.
#include "tests/gpu/soft_gpu/two_models.hpp"

#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

using namespace tree_attn;

namespace {

struct Count {
  long n = 0, n_differing = 0;
};

/// All sums of a device.
template <class T>
Count compare(const std::string& folder, const std::string& device, const std::string& type, int major) {
  const auto opened = [&](const char* what, const std::string& of) {
    std::ifstream file(folder + '/' + device + '/' + type + '/' + what + '_' + device + '_' + of + ".txt");
    if (!file) throw std::runtime_error("no " + std::string(what) + " of " + device + " and " + type + " in " + folder);
    return file;
  };
  std::ifstream a = opened("a", type), b = opened("b", type), c = opened("c", "fp32"), d = opened("d", "fp32");
  Count count;
  for (std::string of_a, of_b, of_c, of_d; getline(a, of_a) && getline(b, of_b) && c >> of_c && d >> of_d; ++count.n) {
    test::Tile<T> tile{};
    const auto elements = [](const std::string& line, std::uint16_t* to) {
      std::istringstream words(line);
      std::size_t i = 0;
      for (std::string word; words >> word && i < 16; ++i)
        to[i] = narrow<T>(std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(word, nullptr, 16)))).bits;
      if (i < 8) throw std::runtime_error("a line of less than 8 elements: " + line);
    };
    elements(of_a, tile.a[0]), elements(of_b, tile.b[0]);
    tile.c[0][0] = static_cast<std::uint32_t>(std::stoul(of_c, nullptr, 2));
    const auto measured = static_cast<std::uint32_t>(std::stoul(of_d, nullptr, 2));
    count.n_differing += tile.by_emulator(major)[0][0] != measured || tile.by_soft_gpu(major)[0][0] != measured;
  }
  return count;
}

}  // namespace

int main(int n, char** words) try {
  if (n != 2) throw std::runtime_error("usage: measured_sums FOLDER");
  constexpr struct {
    const char* name;
    int major;
  } kDevices[] = {{"A100", 8}, {"A2", 8}, {"Ada", 8}, {"L40S", 8}, {"H100", 9}, {"H200", 9}, {"B200", 10}};
  Count all;
  for (const auto& device : kDevices) {
    for (const bool is_half : {false, true}) {
      const char* const type = is_half ? "fp16" : "bf16";
      const Count one = is_half ? compare<Half>(words[1], device.name, type, device.major)
                                : compare<BFloat16>(words[1], device.name, type, device.major);
      std::printf("%-5s %s: %ld sums, %ld differ\n", device.name, type, one.n, one.n_differing);
      all.n += one.n, all.n_differing += one.n_differing;
    }
  }
  std::printf("%ld sums, %ld differ\n", all.n, all.n_differing);
  return all.n == 0 || all.n_differing != 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
