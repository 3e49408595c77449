/* SPDX-License-Identifier: Apache-2.0 */
int own_library(void);
int own_library(void) { return 1; }
