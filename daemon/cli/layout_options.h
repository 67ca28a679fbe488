// The options of a layout and of OSTs, as several commands take them. Stateless.
#pragma once

#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace nacre::cli {

bool IsOption(const std::string& word, const char* short_name, const char* long_name);

// "-E", "-c", "-S" or "-N" for each spelling; "" for what is no option of a layout.
std::string LayoutOption(const std::string& word);

// "3,7,10-12" (client/layout_text.h has the rest of a layout).
StatusOr<std::vector<OstIndex>> ParseOsts(const std::string& text);

// "[0x1:0x3b:0x0]", with or without the brackets.
StatusOr<Fid> ParseFid(const std::string& text);

}  // namespace nacre::cli
