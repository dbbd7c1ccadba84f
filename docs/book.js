// What the theme leaves out for people without a mouse: a name of its search, and the focus on tables wider than the screen.
function reachable() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0;
    else wrap.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
