// What is wrong with the layout of the pages in this one's frames, as `browser.py` reads it.
//
// What is seen of each text and picture is its rectangle within all that clips it. What one can scroll to is not cut.

const EDGE = 1.5;  // px: fractions of a pixel are no fault
const TABLES = ".wide, .md-typeset__scrollwrap";
const named = (element) => element.tagName.toLowerCase() + [...element.classList].map((name) => "." + name).join("");
const scrolls = (style) => /auto|scroll/.test(style.overflowX);

function seen(element, box) {  // null where it is hidden, or beyond the edge of what scrolls by itself
  let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom], cut = false, sticky = 0;
  for (let at = element; at && at !== at.ownerDocument.body; at = at.parentElement) {
    const style = at.ownerDocument.defaultView.getComputedStyle(at), own = at.getBoundingClientRect();
    if (style.visibility === "hidden" || style.opacity === "0" || style.position === "fixed") return null;
    sticky += style.position === "sticky";  // what scrolls goes under it
    if (style.overflowX === "visible") continue;
    cut ||= !scrolls(style) && right - own.right > EDGE;
    [left, right] = [Math.max(left, own.left), Math.min(right, own.right)];
    [top, bottom] = [Math.max(top, own.top), Math.min(bottom, own.bottom)];
  }
  return right - left > EDGE && bottom - top > EDGE ? { left, top, right, bottom, cut, sticky } : null;
}

function covers(one, other) {
  const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
  const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
  // Boxes of lines may touch; those that share a third of the smaller one's height cover each other.
  return wide > EDGE && high > Math.min(one.bottom - one.top, other.bottom - other.top) / 3;
}

function faults(frame) {
  const page = frame.contentDocument, view = page.defaultView, width = frame.clientWidth, said = [], shown = [];
  page.querySelectorAll("details").forEach((one) => (one.open = true));
  if (page.documentElement.scrollWidth > width) said.push(`it is ${page.documentElement.scrollWidth} px wide`);
  const add = (element, box, what) => {
    const it = seen(element, box);
    if (!it || !element.checkVisibility()) return;
    if (it.cut || it.left < -EDGE || it.right > width + EDGE) said.push(`cut: ${what} in ${named(element)}`);
    shown.push({ ...it, what });
  };
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, words = text.data.trim(), range = page.createRange();
    if (!words || /STYLE|SCRIPT/.test(text.parentElement.tagName)) continue;
    range.selectNodeContents(text);
    for (const box of range.getClientRects()) add(text.parentElement, box, `"${words.slice(0, 40)}"`);
  }
  for (const image of page.querySelectorAll("img")) {
    add(image, image.getBoundingClientRect(), "a picture");
    if (!image.naturalWidth) said.push(`not loaded: ${image.alt}`);
  }
  shown.sort((a, b) => a.top - b.top);
  shown.forEach((one, place) => {
    for (let next = place + 1; next < shown.length && shown[next].top < one.bottom; next++)
      if (one.sticky === shown[next].sticky && covers(one, shown[next])) said.push(`${one.what} covers ${shown[next].what}`);
  });
  for (const box of page.querySelectorAll(TABLES))
    if (box.scrollWidth > box.clientWidth + EDGE && !/gradient/.test(view.getComputedStyle(box).backgroundImage))
      said.push(`${named(box)} does not show that it scrolls`);
  return [...new Set(said)];
}

addEventListener("load", () => setTimeout(() => {
  const said = [...document.querySelectorAll("iframe")].map(faults);
  document.body.append(Object.assign(document.createElement("pre"), { id: "said", textContent: JSON.stringify(said) }));
}, 500));
