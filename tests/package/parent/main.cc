// SPDX-License-Identifier: Apache-2.0
// A program of a project that has Larder in it.
int main() { return 0; }
