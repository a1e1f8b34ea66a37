// SPDX-License-Identifier: Apache-2.0
// On a narrow screen a displayed formula begins at the left, and its number too, so that nothing but the end of a long one has to be scrolled.
if (window.innerWidth < 600) MathJax.Hub.Config({displayAlign: "left", TeX: {TagSide: "left"}});
