// Looks at the page and writes what it found into an element of its own.
const complaints = [];
const pictures = [...document.querySelectorAll("svg")];
let shapes = 0;
for (const picture of pictures) {
  const name = picture.getAttribute("aria-label");
  const { width, height } = picture.viewBox.baseVal;
  const texts = [...picture.querySelectorAll("text")].map((text) => [text.textContent, text.getBBox()]);
  for (const [words, box] of texts) {
    const inside = box.x >= -1 && box.y >= -3 && box.x + box.width <= width + 1 && box.y + box.height <= height + 3;
    if (!inside || box.width === 0) complaints.push(`${name}: "${words}" is not inside of ${width} x ${height}`);
  }
  texts.forEach(([one, a], index) => {
    for (const [two, b] of texts.slice(index + 1)) {
      const apart = a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y + 4 || b.y + b.height <= a.y + 4;
      if (!apart) complaints.push(`${name}: "${one}" lies on "${two}"`);
    }
  });
  const drawn = [...picture.querySelectorAll(".bar, .point")].filter((shape) => shape.getBBox().width > 0);
  if (drawn.length === 0) complaints.push(`${name}: nothing is drawn`);
  for (const shape of drawn) {
    if (getComputedStyle(shape).fill === getComputedStyle(shape.closest("figure")).backgroundColor) {
      complaints.push(`${name}: a shape has the colour of its paper`);
    }
  }
  shapes += drawn.length;
}
const root = document.documentElement;
if (root.scrollWidth > window.innerWidth) complaints.push(`the page is ${root.scrollWidth} wide`);
for (const figure of document.querySelectorAll("figure")) {
  if (figure.scrollWidth > figure.clientWidth) complaints.push(`${figure.textContent.slice(0, 40)}: sticks out`);
}
const fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
if (fetched.length > 0) complaints.push(`fetched ${fetched}`);
const found = document.createElement("pre");
found.id = "found";
found.textContent = JSON.stringify({
  complaints, shapes, pictures: pictures.length,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  paper: getComputedStyle(document.body).backgroundColor,
});
document.body.append(found);
