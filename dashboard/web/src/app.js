import "htm/preact";
import "uplot";
// Keeps the page up to date: replaces sections that the server rendered, counts ages, reads values off the chart.
// Without this file the page is complete and reloads itself.


const body = document.body;
let snapshotId = body.dataset.snapshot;
let clockLead = Number(body.dataset.now) - Date.now() / 1000;
let source = null;
let isLost = false;

function ageText(seconds) {
  if (seconds < 1) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min ago` : `${Math.floor(hours / 24)} d ${hours % 24} h ago`;
}

function showAges() {
  const now = Date.now() / 1000 + clockLead;
  for (const span of document.querySelectorAll(".age")) {
    const text = ageText(now - Number(span.dataset.at));
    if (span.textContent !== text) span.textContent = text;
  }
  const connection = document.getElementById("connection");
  if (connection) connection.textContent = isLost ? " · page disconnected, trying again" : "";
  body.classList.toggle("lost", isLost);
}

function replaceSection(key, html) {
  const section = document.getElementById(key);
  if (!section) return;
  const selection = document.getSelection();
  // Somebody is copying from here; the next change of this section comes in a moment.
  if (selection && !selection.isCollapsed && selection.containsNode(section, true)) return;
  const open = [...section.querySelectorAll("details[open]")].map((details) => details.id);
  const focused = section.contains(document.activeElement) && document.activeElement.closest("details")?.id;
  section.innerHTML = html;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focused) document.querySelector(`#${focused} > summary`)?.focus();
  showAges();
}

function connect() {
  if (source || document.hidden) return;
  source = new EventSource(`/events?after=${encodeURIComponent(snapshotId)}`);
  source.addEventListener("section", (event) => {
    const { section, html } = JSON.parse(event.data);
    snapshotId = event.lastEventId;
    replaceSection(section, html);
  });
  source.addEventListener("tick", (event) => {
    clockLead = Number(event.data) - Date.now() / 1000;
    isLost = false;
    showAges();
  });
  source.addEventListener("error", () => {
    isLost = true;
    showAges();
    // A browser gives up for good after an HTTP error, such as the one for too many viewers.
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect();
      setTimeout(connect, 5000);
    }
  });
}

function disconnect() {
  source?.close();
  source = null;
}

// Browsers allow six connections to one server: tabs that nobody looks at must not hold one.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));

document.addEventListener("pointermove", (event) => {
  const svg = event.target instanceof Element && event.target.closest("svg[data-points]");
  if (!svg) return clearCursor();
  const points = JSON.parse(svg.dataset.points);
  const box = svg.getBoundingClientRect();
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const wanted = first + ((event.clientX - box.left) / box.width) * (last - first);
  let nearest = points[0];
  for (const point of points) {
    if (Math.abs(point[0] - wanted) < Math.abs(nearest[0] - wanted)) nearest = point;
  }
  const { width, height } = svg.viewBox.baseVal;
  const x = (width * (nearest[0] - first)) / (last - first);
  svg.querySelector(".cursor").setAttribute("d", `M${x.toFixed(1)} 0V${height}`);
  const loss = (value) => (value === null ? "–" : value.toFixed(3));
  const readout = svg.closest("section").querySelector(".readout");
  readout.textContent =
    `${nearest[0].toLocaleString("en")} tokens: held-out ${loss(nearest[1])}, training ${loss(nearest[2])}`;
});

function clearCursor() {
  for (const cursor of document.querySelectorAll(".cursor")) {
    if (!cursor.getAttribute("d")) continue;
    cursor.setAttribute("d", "");
    cursor.closest("section").querySelector(".readout").textContent = "over tokens committed";
  }
}

setInterval(showAges, 1000);
showAges();
connect();
