// tensorbus: the command-line program.
#include "program/run.h"

int main(int argc, char** argv) { return tensorbus::program::run_program(argc, argv); }
