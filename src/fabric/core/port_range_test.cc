#include "fabric/core/port_range.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

TEST(PortRange, IsReadAsPeopleWriteIt) {
  EXPECT_EQ(parse_port_range("7000-7099"), (PortRange{7000, 7099}));
  EXPECT_EQ(parse_port_range("7000"), (PortRange{7000, 7000}));
  EXPECT_TRUE(parse_port_range("").any());
  EXPECT_EQ(to_string(PortRange{1, 65535}), "1-65535");
}

TEST(PortRange, WhatIsNoneIsRefused) {
  for (const char* wrong : {"-", "a-b", "7000-", "-7000", "7001-7000", "0-7000", "7000-65536",
                            "7000-7001-7002", "7000 7001", "0"}) {
    EXPECT_THROW(parse_port_range(wrong), Error) << wrong;
  }
  EXPECT_THROW(effective({7, 6}), Error);
  EXPECT_THROW(effective({0, 6}), Error);
}

TEST(PortRange, AnArgumentWinsOverTheEnvironment) {
  ASSERT_EQ(::setenv("TENSORBUS_PORTS", "7000-7001", 1), 0);
  EXPECT_EQ(effective({}), (PortRange{7000, 7001}));
  EXPECT_EQ(effective({8000, 8001}), (PortRange{8000, 8001}));
  ::unsetenv("TENSORBUS_PORTS");
  EXPECT_TRUE(effective({}).any());
}

}  // namespace
}  // namespace tensorbus::fabric
