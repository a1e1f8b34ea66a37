// SPDX-License-Identifier: Apache-2.0
// On a narrow screen a displayed formula begins at the left, so that as much of it as possible is seen before it has to be scrolled.
MathJax.Hub.Config({displayAlign: window.innerWidth < 600 ? "left" : "center"});
