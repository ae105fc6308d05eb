// What the theme leaves undone. Every page works without it.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  // A box that scrolls sideways must be reachable by keyboard; one that does not is no stop.
  const boxes = document.querySelectorAll(".katex-display, .claim table, table.table");
  const reach = () => {
    for (const box of boxes) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  reach();
  addEventListener("resize", reach);
  document.fonts.ready.then(reach); // formulas get their final width with their font

  document.querySelector(".print-page")?.addEventListener("click", () => print());

  // The menu to take a page along closes like any other.
  const menu = document.querySelector(".take-along");
  if (menu) {
    document.addEventListener("click", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      menu.querySelector("summary").focus();
    });
  }
});
