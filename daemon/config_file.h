// Reads a TOML file into sections. Errors, all of the file's in one message, one a line: "FILE:LINE: [mds]
// memory:
// \"lots\" is not a size: …". Nothing else is done with values than ConfigSection::Assign does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "daemon/config_section.h"

namespace nacre {

// Sections of the file that are not among these are errors; sections that the file lacks keep their defaults.
Status ReadConfigFile(const std::string& path, const std::vector<ConfigSection>& sections);

// The same from a text; `name` stands for the file in messages.
Status ReadConfigText(std::string_view text, const std::string& name,
                      const std::vector<ConfigSection>& sections);

}  // namespace nacre
