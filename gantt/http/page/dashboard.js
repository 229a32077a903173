// SPDX-License-Identifier: Apache-2.0
// The dashboard: asks the interface beside it, and draws.  No text of an answer is ever
// taken for markup: all of it becomes text nodes.

const API = new URL('../v1/', import.meta.url);
const VERSION = 'scheduler latest'; // the page comes with the interface that it asks
const EVERY_MS = 10000;
const SLOWEST_MS = 120000; // between two rounds, while nobody answers
const PATIENCE_MS = 20000; // for one answer
const HELD_MS = 2000;
const AT_ONCE = 2; // requests under way
const DECISIONS = 30;
const MEMBERS = 10;
const PLANS = 20;
const STATES = ['planned', 'created', 'running', 'expired', 'lost'];
const TOKEN = 'gantt-token';
const NOUNS = { VCPU: 'vCPU', PCPU: 'pCPU', MEMORY_MB: 'RAM', DISK_GB: 'disk' };
const UNITS = { MEMORY_MB: 'MiB', DISK_GB: 'GiB' };

const $ = (id) => document.getElementById(id);
const chosen = { resource: 'VCPU', order: 'name', find: '', window: 3600, outcome: '' };
const last = {}; // the last good answer of each panel

// -- small tools ----------------------------------------------------------------------

function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** A part of a whole as the width of an element; by script, as the page allows no style attribute. */
function wide(element, share) {
  element.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
  return element;
}

const number = (value) => value.toLocaleString('en');
const count = (value, one) => `${number(value)} ${one}${value === 1 ? '' : 's'}`;
const words = (code) => (code === 'over_committed' ? 'over-committed' : code.replaceAll('_', ' '));
/** An outcome in words; of decisions about hosts and pools alike without a kind. */
const outcome = (code, kind = 'host or pool') => (code === 'no_valid_host' ? `no valid ${kind}` : words(code));
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function age(seconds) {
  if (seconds === null || seconds < 0) return 'never';
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 120 ? `${Number(seconds.toPrecision(3))} s` : age(seconds);
}

const clock = (date, withSeconds) =>
  date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: withSeconds ? '2-digit' : undefined });

function amount(value, resource) {
  if (resource === 'MEMORY_MB' && Math.abs(value) >= 1024) return `${number(Math.round(value / 102.4) / 10)} GiB`;
  return `${number(value)} ${UNITS[resource] || ''}`.trim();
}

// -- asking -----------------------------------------------------------------------------

class Refusal extends Error {
  constructor(status, error, retryAfter) {
    super(error.detail || `the interface answered ${status}`);
    this.status = status;
    this.code = error.code || '';
    this.requestId = error.request_id || '';
    this.retryAfter = retryAfter;
  }
}

function token() {
  try { return sessionStorage.getItem(TOKEN) || ''; } catch { return ''; }
}

async function ask(path) {
  const headers = { 'OpenStack-API-Version': VERSION, Accept: 'application/json' };
  if (token()) headers['X-Auth-Token'] = token();
  let answer;
  try {
    answer = await fetch(new URL(path, API), {
      headers, cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    const late = error.name === 'TimeoutError';
    throw new Refusal(0, { detail: late ? `no answer within ${PATIENCE_MS / 1000} s` : 'the interface does not answer' });
  }
  let body = null;
  try { body = await answer.json(); } catch { body = null; }
  if (!answer.ok || body === null) {
    const error = (body && body.errors && body.errors[0]) || {};
    throw new Refusal(answer.status, error, Number(answer.headers.get('Retry-After')) || 0);
  }
  return body;
}

function said(error) {
  if (!(error instanceof Refusal)) return `this page met an error: ${error.message}`;
  const facts = [error.code, error.requestId].filter(Boolean).join(', ');
  return facts ? `${error.message} (${facts})` : error.message;
}

/** The message of a panel; `bad` where what it shows is not what is. */
function note(section, text, bad) {
  const line = $(section).querySelector('.note');
  line.textContent = text;
  line.classList.toggle('bad', Boolean(bad));
  $(section).classList.toggle('old', Boolean(bad));
}

// -- panels -----------------------------------------------------------------------------
// What is asked, in this order, and who draws it.

const PANELS = [
  { sections: ['hosts'], path: () => `host-map?resource_class=${encodeURIComponent(chosen.resource)}`, draw: drawHosts },
  { sections: ['tiles'], path: () => 'status', draw: drawStatus },
  { sections: ['rate', 'wait', 'claims'], path: () => `activity?window=${chosen.window}`, draw: drawActivity },
  { sections: ['decisions'], path: () => `decisions?limit=${DECISIONS}${chosen.outcome && `&outcome=${chosen.outcome}`}`, draw: drawDecisions },
  { sections: ['refused'], path: () => `refused?window=${chosen.window}`, draw: drawRefused },
  { sections: ['plans'], path: () => `group-plans?states=true&limit=${PLANS}`, draw: drawPlans },
  { sections: ['zones'], path: () => 'zone-tree', draw: drawZones },
];

/** Nothing is drawn anew under a finger: a click that began on a thing ends on it. */
let held = Promise.resolve();
let letGo = () => {};

function hold() {
  letGo();
  held = new Promise((done) => { letGo = done; setTimeout(done, HELD_MS); });
}

/** Replace what is in an element; the button that had the focus has it again. */
function replaced(element, ...children) {
  const focused = [...element.querySelectorAll('button')].indexOf(document.activeElement);
  element.replaceChildren(...children);
  if (focused >= 0) element.querySelectorAll('button')[focused]?.focus({ preventScroll: true });
}

async function load(panel) {
  const path = panel.path();
  try {
    const answer = await ask(path);
    await held;
    if (path !== panel.path()) return null; // something else was chosen meanwhile
    last[panel.sections[0]] = answer;
    panel.at = new Date();
    for (const section of panel.sections) if (section !== 'tiles') note(section, '', false);
    panel.draw(answer);
    return null;
  } catch (error) {
    const shown = panel.at ? ` Shown is what was known at ${clock(panel.at, true)}.` : '';
    for (const section of panel.sections) {
      if (section !== 'tiles') note(section, `Not known: ${said(error)}.${shown}`, true);
    }
    if (!(error instanceof Refusal)) console.error(error);
    return error;
  }
}

let timer = 0;
let running = false;
let again = false;
let failures = 0;

async function round() {
  if (running) { again = true; return; }
  running = true;
  clearTimeout(timer);
  const errors = [];
  // What is seen first is asked for first, and alone.
  const queue = [...PANELS];
  errors.push(await load(queue.shift()));
  const worker = async () => { while (queue.length) errors.push(await load(queue.shift())); };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  running = false;
  state(errors.filter(Boolean));
  if (again) { again = false; round(); } else schedule(errors.filter(Boolean));
}

function schedule(errors) {
  clearTimeout(timer);
  if (document.hidden || $('pause').getAttribute('aria-pressed') === 'true') return;
  failures = errors.length === PANELS.length ? failures + 1 : 0;
  const asked = Math.max(0, ...errors.map((error) => (error.retryAfter || 0) * 1000));
  timer = setTimeout(round, Math.min(SLOWEST_MS, Math.max(asked, EVERY_MS * 2 ** Math.min(failures, 4))));
}

/** What holds for the page as a whole. */
function state(errors) {
  const line = $('trouble');
  const wanted = errors.find((error) => error.status === 401);
  const away = errors.length === PANELS.length && errors[0];
  line.hidden = !(wanted || away);
  line.textContent = wanted
    ? `The interface asks who is there: give a token with the button above. It says: ${said(wanted)}`
    : away ? `Nothing could be asked: ${said(away)}. This page tries again by itself.` : '';
  if (errors.length < PANELS.length) fresh();
}

function fresh() {
  const ages = last.hosts ? `, from a host table ${age(last.hosts.table_age_seconds)} old` : '';
  $('freshness').textContent = `updated ${clock(new Date(), true)}${ages}`;
}

// -- at a glance -----------------------------------------------------------------------------

function drawStatus(status) {
  $('version').textContent = status.version;
  const tile = (value, text) => h('li', {}, h('b', {}, value), h('span', {}, text));
  const free = (use) => (use.cap > 0 ? `${Math.round((use.free / use.cap) * 100)} %` : '–');
  $('tiles').replaceChildren(
    tile(number(status.hosts_total), 'hosts known'),
    ...Object.entries(status.hosts).filter(([name, count]) => count || name === 'up' || name === 'stale')
      .map(([name, count]) => tile(number(count), words(name))),
    tile(number(status.claims), 'live claims'),
    ...status.usage.filter((use) => use.resource_class in NOUNS).map((use) => tile(free(use), `${NOUNS[use.resource_class] || use.resource_class} free`)),
  );
  const list = status.refusals.slice(0, 5).map((group) => h('li', {}, h('button', {
    type: 'button', onclick: () => explain(group.decision_id),
  }, h('span', { class: `outcome ${group.outcome}` }, `${number(group.count)} ×`),
  h('span', { class: 'when' }, `${age(group.last_age_seconds)} ago`), h('span', { class: 'why' }, `${group.shape}: ${group.reason}`))));
  const more = status.refusals.length - list.length;
  replaced($('groups'), ...(list.length ? [
    h('h3', {}, `By what was asked for and what decided, in the last ${age(status.window_seconds)}`), h('ul', { class: 'rows' }, list),
    more > 0 ? h('p', { class: 'quiet' }, `and ${number(more)} more kinds`) : null].filter(Boolean) : []));
}

// -- heat map ---------------------------------------------------------------------------------

const map = { order: [], columns: 1, cell: 8, at: -1, data: null };

function drawHosts(data) {
  const select = $('class');
  const classes = data.classes.includes(data.resource_class) ? data.classes : [data.resource_class, ...data.classes];
  if ([...select.options].map((o) => o.value).join() !== classes.join()) {
    select.replaceChildren(...classes.map((name) => h('option', { value: name }, name)));
    select.value = data.resource_class;
  }
  map.data = data;
  arrange();
  paint();
  if (!data.hosts.length) note('hosts', 'No host is known yet: none has registered.', false);
  else if (!data.cap.some((cap) => cap > 0)) note('hosts', `No host has any ${data.resource_class}.`, false);
  if (!performance.getEntriesByName('gantt-hosts-painted').length) {
    // In the second frame from here the first has been shown.
    requestAnimationFrame(() => requestAnimationFrame(() => performance.mark('gantt-hosts-painted')));
  }
}

const share = (i) => (map.data.cap[i] > 0 ? Math.min(1, Math.max(0, map.data.free[i] / map.data.cap[i])) : -1);

function arrange() {
  const { hosts, zone, zones } = map.data;
  map.order = hosts.map((_, i) => i); // by name
  if (chosen.order === 'zone') map.order.sort((a, b) => zones[zone[a]].localeCompare(zones[zone[b]]) || a - b);
  if (chosen.order === 'free') map.order.sort((a, b) => share(a) - share(b) || a - b);
}

function steps() {
  const stops = [0, 1, 2, 3, 4].map((i) => {
    const hex = parseInt(colour(`--heat-${i}`).slice(1), 16);
    return [hex >> 16, (hex >> 8) & 255, hex & 255];
  });
  return Array.from({ length: 41 }, (_, k) => {
    const at = (k / 40) * 4;
    const low = Math.min(3, Math.floor(at));
    return `rgb(${stops[low].map((v, c) => Math.round(v + (stops[low + 1][c] - v) * (at - low))).join()})`;
  });
}

function hatching(context, scale) {
  const size = Math.max(4, Math.round(Math.min(7, map.cell * 0.6) * scale));
  const tile = new OffscreenCanvas(size, size);
  const pen = tile.getContext('2d');
  pen.strokeStyle = colour('--hatch');
  pen.lineWidth = Math.max(1.2, size * 0.3);
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift - size, size * 2); // past the corners, where tiles meet
    pen.lineTo(shift + size * 2, -size);
    pen.stroke();
  }
  const pattern = context.createPattern(tile, 'repeat');
  pattern.setTransform(new DOMMatrix().scale(1 / scale)); // its points are those of the screen
  return pattern;
}

function paint() {
  if (!map.data) return;
  const canvas = $('map');
  const width = canvas.parentElement.clientWidth;
  const count = map.order.length;
  map.cell = Math.max(4, Math.min(26, Math.floor(Math.sqrt((width * 380) / Math.max(1, count)))));
  map.columns = Math.max(1, Math.floor(width / map.cell));
  const height = Math.max(1, Math.ceil(count / map.columns)) * map.cell;
  const scale = Math.min(2, window.devicePixelRatio || 1);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  paintCells(context, hatching(context, scale));
  describeMap();
  point(map.at < count ? map.at : -1);
}

function paintCells(context, hatch) {
  const { data, cell, columns } = map;
  const colours = steps();
  const by = { disabled: colour('--off'), over_committed: colour('--over'), none: colour('--hollow') };
  const size = cell - (cell > 9 ? 2 : 1);
  const find = chosen.find.toLowerCase();
  map.order.forEach((i, k) => {
    const x = (k % columns) * cell;
    const y = Math.floor(k / columns) * cell;
    const condition = data.conditions[data.condition[i]];
    const free = share(i);
    context.globalAlpha = find && !data.hosts[i].toLowerCase().includes(find) ? 0.12 : 1;
    if (condition === 'disabled' || condition === 'over_committed') {
      context.fillStyle = by[condition];
      context.fillRect(x, y, size, size);
    } else if (condition === 'new' || free < 0) {
      context.strokeStyle = by.none;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    } else {
      context.fillStyle = colours[Math.round(free * 40)];
      context.fillRect(x, y, size, size);
    }
    if (condition === 'stale') {
      context.fillStyle = hatch;
      context.fillRect(x, y, size, size);
    }
  });
  context.globalAlpha = 1;
}

function describeMap() {
  const { data } = map;
  const counts = data.conditions.map((name, code) => [name, data.condition.filter((c) => c === code).length]);
  const parts = counts.filter(([, count]) => count).map(([name, count]) => `${number(count)} ${words(name)}`);
  $('map').setAttribute('aria-label', `Heat map of ${number(data.hosts.length)} hosts by free share of ${data.resource_class}: ${parts.join(', ')}`);
  if (!chosen.find) return;
  const found = data.hosts.filter((name) => name.toLowerCase().includes(chosen.find.toLowerCase())).length;
  $('map-said').textContent = `${number(found)} of ${number(data.hosts.length)} hosts have “${chosen.find}” in their name`;
}

function hostWords(i) {
  const { data } = map;
  const cap = data.cap[i];
  const room = cap > 0
    ? `${amount(data.free[i], data.resource_class)} of ${amount(cap, data.resource_class)} ${data.resource_class} free (${Math.round((data.free[i] / cap) * 100)} %)`
    : `has no ${data.resource_class}`;
  const report = data.report_age_seconds[i];
  return [room, `${words(data.conditions[data.condition[i]])}, zone ${data.zones[data.zone[i]]}, ${number(data.claims[i])} claims`,
    report < 0 ? 'never reported' : `last report ${age(report)} ago`];
}

/** Point at the k-th square, -1: at none. */
function point(k, tip) {
  map.at = k;
  const { cell, columns } = map;
  $('cursor').hidden = k < 0;
  $('tip').hidden = k < 0 || !tip;
  if (k < 0) return;
  const x = (k % columns) * cell;
  const y = Math.floor(k / columns) * cell;
  const cursor = $('cursor').style;
  [cursor.left, cursor.top] = [`${x - 2}px`, `${y - 2}px`];
  cursor.width = cursor.height = `${cell + 3}px`;
  if (!tip) return;
  const i = map.order[k];
  const lines = hostWords(i);
  $('map-said').textContent = `${map.data.hosts[i]}: ${lines.join('; ')}`;
  const box = $('tip');
  box.replaceChildren(h('b', {}, map.data.hosts[i]), ...lines.map((line) => h('div', {}, line)));
  box.style.left = '0px';
  const room = $('map').clientWidth - box.offsetWidth;
  box.style.left = `${Math.max(0, Math.min(room, x + cell + 6))}px`;
  const below = y + cell + 8;
  box.style.top = `${below + box.offsetHeight > $('map').clientHeight + 60 && y > box.offsetHeight ? y - box.offsetHeight - 8 : below}px`;
}

function under(event) {
  const box = $('map').getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / map.cell);
  const k = Math.floor((event.clientY - box.top) / map.cell) * map.columns + column;
  return column >= 0 && column < map.columns && k >= 0 && k < map.order.length ? k : -1;
}

function key(event) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.columns, ArrowDown: map.columns };
  const count = map.order.length;
  if (!count) return;
  if (event.key in moves) point(Math.min(count - 1, Math.max(0, map.at < 0 ? 0 : map.at + moves[event.key])), true);
  else if (event.key === 'Home') point(0, true);
  else if (event.key === 'End') point(count - 1, true);
  else if (event.key === 'Escape') point(-1);
  else if ((event.key === 'Enter' || event.key === ' ') && map.at >= 0) showHost(map.data.hosts[map.order[map.at]]);
  else return;
  event.preventDefault();
}

// -- charts -----------------------------------------------------------------------------------

function drawActivity(activity) {
  drawRate(activity);
  drawWait(activity);
  drawClaims(activity);
}

/** A frame with an axis, what is not known in grey, and a strip to point at for each part. */
function frame(activity, title, most, unit, draw, tip) {
  const width = Math.max(280, $('rate').querySelector('.body').clientWidth);
  const height = 190;
  const [left, bottom, top] = [58, 22, 12];
  const parts = activity.confirmed.length;
  const step = (width - left) / parts;
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  const unknown = Math.max(0, Math.min(1, 1 - activity.known_seconds / activity.window_seconds));
  if (unknown > 0.01) {
    const wide = unknown * (width - left);
    picture.append(svg('rect', { class: 'unknown', x: left, y: top, width: wide, height: height - bottom - top }));
    if (wide > 70) picture.append(svg('text', { x: left + wide / 2, y: height / 2, 'text-anchor': 'middle' }, 'before the first'));
  }
  for (const part of [0, 0.5, 1]) {
    const line = y(most * part);
    picture.append(svg('line', { class: 'grid', x1: left, x2: width, y1: line, y2: line }),
      svg('text', { x: left - 6, y: line + 4, 'text-anchor': 'end' }, unit(most * part)));
  }
  const end = Date.now() - activity.end_age_seconds * 1000;
  for (const [part, anchor] of [[0, 'start'], [0.5, 'middle'], [1, 'end']]) {
    const at = new Date(end - activity.window_seconds * 1000 * (1 - part));
    picture.append(svg('text', { x: left + part * (width - left), y: height - 5, 'text-anchor': anchor }, clock(at)));
  }
  draw(picture, (k) => left + k * step, step, y);
  for (let k = 0; k < parts; k += 1) {
    const at = clock(new Date(end - (parts - k) * activity.part_seconds * 1000), true);
    picture.append(svg('rect', { class: 'hit', x: left + k * step, y: top, width: step, height: height - bottom - top },
      svg('title', {}, `${at}: ${tip(k)}`)));
  }
  return h('div', { class: 'chart' }, picture);
}

function keys(entries) {
  return h('div', { class: 'legend' }, entries.map(([style, text]) => h('span', {}, h('i', { class: `key fill-${style}` }), text)));
}

/** The same in numbers, for who does not see the picture. */
function asTable(activity, columns) {
  const end = Date.now() - activity.end_age_seconds * 1000;
  const parts = activity.confirmed.length;
  const rows = [];
  for (let k = parts - 1; k >= 0; k -= 1) {
    const cells = columns.map(([, value]) => value(k));
    if (cells.some(Boolean)) {
      const at = clock(new Date(end - (parts - k) * activity.part_seconds * 1000), true);
      rows.push(h('tr', {}, h('td', {}, at), cells.map((cell) => h('td', { class: 'number' }, cell || '–'))));
    }
  }
  const head = h('tr', {}, h('th', {}, 'from'), columns.map(([name]) => h('th', { class: 'number' }, name)));
  return h('details', {}, h('summary', {}, 'In numbers'), h('div', { class: 'scroll' }, h('table', {}, head, rows)));
}

/** Replace what a panel shows; what was unfolded stays so. */
function put(section, ...children) {
  const body = $(section).querySelector('.body');
  const open = body.querySelector('details')?.open;
  body.replaceChildren(...children.filter(Boolean));
  const details = body.querySelector('details');
  if (details && open) details.open = true;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

/** A round number that is not below. */
function ceiling(value) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((step) => step * ten).find((step) => step >= value * 0.9999);
}

function drawRate(activity) {
  const order = ['placed', 'no_valid_host', 'conflict'];
  const names = Object.keys(activity.outcomes).sort((a, b) => (order.indexOf(a) + 99) % 99 - (order.indexOf(b) + 99) % 99);
  const series = [...order.filter((n) => names.includes(n)), ...names.filter((n) => !order.includes(n))];
  const totals = activity.confirmed.map((_, k) => sum(series.map((name) => activity.outcomes[name][k])));
  if (!sum(totals)) {
    put('rate', h('p', { class: 'quiet' }, `No decision is kept from the last ${age(activity.window_seconds)}.`));
    return;
  }
  const peak = Math.max(...totals) / activity.part_seconds;
  const [per, unit] = peak >= 1 ? [1, '/s'] : [60, '/min'];
  const rate = (count) => (count / activity.part_seconds) * per;
  const style = (name) => (order.includes(name) ? name : 'other');
  const label = (value) => `${Number(value.toPrecision(3))}${unit}`;
  const picture = frame(activity, `Decisions over time, at most ${label(peak * per)}`, ceiling(peak * per), label, (into, x, step, y) => {
    totals.forEach((_, k) => {
      let below = 0;
      for (const name of series) {
        const value = rate(activity.outcomes[name][k]);
        if (value) into.append(svg('rect', { class: `fill-${style(name)}`, x: x(k) + 0.5, width: Math.max(1, step - 1), y: y(below + value), height: y(below) - y(below + value) }));
        below += value;
      }
    });
  }, (k) => series.map((name) => `${number(activity.outcomes[name][k])} ${outcome(name)}`).join(', '));
  put('rate', picture, keys(series.map((name) => [style(name), `${outcome(name)}: ${number(sum(activity.outcomes[name]))}`])),
    asTable(activity, series.map((name) => [outcome(name), (k) => activity.outcomes[name][k] && number(activity.outcomes[name][k])])));
}

function drawWait(activity) {
  const series = [['median', activity.confirm_median_seconds, 'half within'], ['p95', activity.confirm_p95_seconds, '95 of 100 within']];
  const most = Math.max(...activity.confirm_p95_seconds.map((value) => value || 0));
  if (!sum(activity.confirmed)) {
    put('wait', h('p', { class: 'quiet' }, `No host has confirmed a claim of the last ${age(activity.window_seconds)} that still stands.`));
    return;
  }
  const value = (k, values) => (values[k] === null ? '–' : duration(values[k]));
  const tip = (k) => (activity.confirmed[k]
    ? `${number(activity.confirmed[k])} confirmed, ${series.map(([, values, text]) => `${text} ${value(k, values)}`).join(', ')}` : 'none');
  const picture = frame(activity, `Seconds to confirmation over time, at most ${duration(most)}`, ceiling(most || 1), duration, (into, x, step, y) => {
    for (const [name, values] of series) {
      let path = '';
      values.forEach((seconds, k) => {
        if (seconds === null) return;
        // A gap where nothing was claimed: a line over it would say what nobody knows.
        path += `${k && values[k - 1] !== null ? 'L' : 'M'}${(x(k) + step / 2).toFixed(1)} ${y(seconds).toFixed(1)}`;
        into.append(svg('circle', { class: `fill-${name}`, cx: x(k) + step / 2, cy: y(seconds), r: 2 }));
      });
      into.append(svg('path', { class: `line line-${name}`, d: path }));
    }
  }, tip);
  put('wait', picture, keys(series.map(([name, , text]) => [name, text])),
    asTable(activity, [['confirmed', (k) => activity.confirmed[k] && number(activity.confirmed[k])],
      ...series.map(([, values, text]) => [text, (k) => values[k] !== null && duration(values[k])])]));
}

function drawClaims(activity) {
  const most = Math.max(1, ...Object.values(activity.claims));
  const bars = Object.entries(activity.claims).map(([name, count]) => h('div', {},
    h('div', { class: 'top' }, h('span', {}, name), h('b', {}, number(count))),
    h('div', { class: 'bar' }, count ? wide(h('i', { class: 'state' }), count / most) : null)));
  const adopted = activity.adopted
    ? `${number(activity.adopted)} live claims were adopted: their hosts run what nobody asked for here.` : 'None of the live ones was adopted.';
  put('claims', h('div', { class: 'bars' }, bars),
    h('p', { class: 'quiet' }, `${adopted} Counted ${age(activity.claims_age_seconds)} ago.`));
}

// -- refusals and decisions ---------------------------------------------------------------------

function funnel(hosts, steps) {
  return h('div', { class: 'bars' }, steps.map((step) => h('div', {},
    h('div', { class: 'top' }, h('span', {}, step.filter), h('b', {}, `−${number(step.removed)}, ${number(step.remaining)} left`)),
    h('div', { class: 'bar' }, wide(h('i', { class: 'left' }), step.remaining / hosts), wide(h('i', { class: 'gone' }), step.removed / hosts)),
    h('div', { class: 'quiet' }, step.reason, step.decisions ? ` (${count(step.decisions, 'decision')})` : ''))));
}

function drawRefused(refused) {
  const pools = refused.pools ? h('p', { class: 'quiet' }, `${count(refused.pools, 'refusal')} for want of a pool beside them.`) : null;
  if (!refused.decisions) {
    put('refused', pools, h('p', { class: 'quiet' }, `Nothing that is kept was refused for want of a host in the last ${age(refused.window_seconds)}.`));
    return;
  }
  const of = refused.truncated ? `The latest ${number(refused.decisions)}` : number(refused.decisions);
  put('refused', h('p', {}, `${of} ${refused.decisions === 1 ? 'refusal' : 'refusals'}. A host counts once for each of them: ${number(refused.hosts)} in all.`),
    funnel(refused.hosts || 1, refused.funnel), pools);
}

function drawDecisions(answer) {
  const row = (decision) => h('li', {}, h('button', { type: 'button', onclick: () => explain(decision.id) },
    h('span', { class: `outcome ${decision.outcome}` }, outcome(decision.outcome, decision.kind)),
    h('span', { class: 'when' }, `${age(decision.age_seconds)} ago`),
    h('span', { class: 'why' }, decision.reason || '', decision.reason ? ' ' : '', h('span', { class: 'id' }, `request ${decision.request_id}`))));
  const body = $('decisions').querySelector('.body');
  replaced(body, ...answer.decisions.map(row));
  if (!answer.decisions.length) note('decisions', chosen.outcome ? `No decision that came out ${outcome(chosen.outcome)} is kept.` : 'No decision is kept yet.', false);
}

// -- plans of groups ------------------------------------------------------------------------------

/** Nothing where no group has a plan. */
function drawPlans(answer) {
  const plans = answer.group_plans;
  $('plans').hidden = !plans.length;
  const cell = (value, kind) => h('td', { class: kind || null }, value);
  const of = (plan, state) => plan.states[state] || 0;
  const states = (plan) => STATES.map((state) => cell(of(plan, state) ? h('span', { class: `outcome ${state}` }, number(of(plan, state))) : '–', 'number'));
  const rows = plans.map((plan) => h('tr', {},
    cell(h('span', { class: 'id' }, plan.group)), states(plan),
    cell(plan.lease_seconds > 0 ? age(plan.lease_seconds) : 'over', 'number'), cell(`${age(plan.age_seconds)} ago`, 'number')));
  const heads = [['Group'], ...STATES.map((state) => [words(state), 'number']), ['Held for', 'number'], ['Made', 'number']];
  const total = (state) => sum(plans.map((plan) => of(plan, state)));
  const members = STATES.filter(total).map((state) => `${number(total(state))} ${state}`).join(', ') || 'none';
  const more = answer.next_marker ? `The first ${number(plans.length)} plans; “gantt group plans” lists all` : count(plans.length, 'plan');
  $('plans').querySelector('.body').replaceChildren(h('p', {}, `${more}. Members: ${members}.`), h('table', {},
    h('thead', {}, h('tr', {}, heads.map(([text, kind]) => h('th', { scope: 'col', class: kind || null }, text)))),
    h('tbody', {}, rows)));
}

// -- zones ---------------------------------------------------------------------------------------

/** Nothing where this zone stands alone. */
function drawZones(tree) {
  $('zones').hidden = !tree.children.length && !tree.parents.length;
  const cell = (value, kind) => h('td', { class: kind || null }, value);
  const above = tree.parents.map((zone) => h('tr', {},
    cell(`${zone.name} (parent)`), cell(zone.enabled ? 'may ask' : 'disabled'), cell(''), cell(''), cell(''), cell(number(zone.claims), 'number')));
  const below = tree.children.map((zone) => h('tr', {},
    cell([zone.name, zone.last_resort ? h('span', { class: 'quiet' }, ' last resort') : null]),
    cell([h('span', { class: `outcome ${zone.state}` }, words(zone.state)), zone.problem ? h('div', { class: 'quiet' }, zone.problem) : null]),
    cell(zone.milliseconds === null ? '–' : `${number(zone.milliseconds)} ms`, 'number'),
    cell(zone.hosts === null ? '–' : number(zone.hosts), 'number'),
    cell(zone.room === null ? '–' : number(zone.room), 'number'),
    cell(number(zone.claims), 'number')));
  const heads = [['Zone'], ['State'], ['Answered in', 'number'], ['Hosts', 'number'], ['With room', 'number'], ['Claims', 'number']];
  $('zones').querySelector('.body').replaceChildren(h('table', {},
    h('thead', {}, h('tr', {}, heads.map(([text, kind]) => h('th', { scope: 'col', class: kind || null }, text)))),
    h('tbody', {}, above, below)));
}

// -- one thing, by a click -------------------------------------------------------------------------

async function show(title, path, draw) {
  $('detail-title').textContent = title;
  $('detail-body').replaceChildren(h('p', {}, 'asking …'));
  if (!$('detail').open) $('detail').showModal();
  show.latest = path;
  try {
    const answer = await ask(path);
    if (show.latest === path) $('detail-body').replaceChildren(...draw(answer).filter(Boolean));
  } catch (error) {
    if (show.latest === path) $('detail-body').replaceChildren(h('p', { class: 'problem' }, `Not known: ${said(error)}`));
    if (!(error instanceof Refusal)) console.error(error);
  }
}

const explain = (id) => show('Decision', `decisions/${encodeURIComponent(id)}?explain=true`, drawExplanation);
const showHost = (name) => show(`Host ${name}`, `hosts/${encodeURIComponent(name)}`, drawHost);
const facts = (pairs) => h('dl', { class: 'facts' }, pairs.filter(([, value]) => value !== '' && value !== null).map(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));

function drawExplanation(found) {
  const members = found.members.slice(0, MEMBERS);
  const more = found.members.length - members.length;
  const ofReports = found.kind === 'host' && found.members.some((member) => member.host || member.scores.length); // pools never report
  return [
    h('p', {}, h('span', { class: `outcome ${found.outcome}` }, outcome(found.outcome, found.kind)), `, ${age(found.age_seconds)} ago: ${number(found.count)} × ${found.shape}`),
    found.reason ? h('p', {}, found.reason) : null,
    ...found.nearest.map((line) => h('p', {}, `Nearest: ${line}`)),
    found.contradiction ? h('p', {}, `${found.contradiction.says}: ${found.contradiction.rules.join('; ')}`) : null,
    ...found.added.map((line) => h('p', { class: 'quiet' }, `Added: ${line}`)),
    ...found.relaxed.map((line) => h('p', {}, `Given up: ${line}`)),
    ...found.conflicts.slice(0, 5).map((line) => h('p', { class: 'quiet' }, `Lost a race and planned again: ${line}`)),
    ...members.flatMap((member) => drawMember(found, member)),
    more > 0 ? h('p', {}, `and ${count(more, 'more member')}; “gantt explain ${found.id} -f json” has them all`) : null,
    h('h3', {}, 'How it was made'),
    facts([['decision', h('span', { class: 'id' }, found.id)], ['request', h('span', { class: 'id' }, found.request_id)],
      ['written', found.created_at], ['by', found.worker], ['project', found.project_id], ['attempts', number(found.attempts)],
      [ofReports ? 'oldest report' : 'table', found.hosts ? `${duration(found.oldest_report_age_seconds)} old` : null], ['seed', String(found.seed)], ['configuration', found.config_digest]]),
    found.lines.length ? h('details', {}, h('summary', {}, 'As text'), h('pre', {}, found.lines.join('\n'))) : null,
  ];
}

function drawMember(found, member) {
  const where = member.host ? `on ${member.host}` : 'nowhere';
  const quiet = member.funnel.filter((step) => !step.removed).length;
  const steps = member.funnel.filter((step) => step.removed);
  return [
    h('h3', {}, found.members.length > 1 ? `Member ${member.member}: ${where}` : member.host ? `Placed ${where}` : 'Not placed'),
    h('p', { class: 'quiet' }, 'consumer ', h('span', { class: 'id' }, member.consumer)),
    member.given_up.length ? h('p', {}, `It does not meet: ${member.given_up.join('; ')}`) : null,
    found.hosts ? h('p', {}, `${count(found.hosts, found.kind)} ${found.hosts === 1 ? 'was' : 'were'} looked at, ${number(member.survivors)} passed every filter.`) : null,
    steps.length ? funnel(found.hosts || 1, steps) : null,
    quiet ? h('p', { class: 'quiet' }, `${count(quiet, 'further filter')} removed none.`) : null,
    member.scores.length ? scores(found, member) : null,
    member.alternates.length ? h('p', { class: 'quiet' }, `Alternates: ${member.alternates.join(', ')}`) : null,
  ];
}

function scores(found, member) {
  const used = found.weighers.map((_, i) => i).filter((i) => member.scores.some((score) => score.weighted[i]));
  const plain = (value) => String(Number(value.toPrecision(4)) + 0);
  const name = (weigher) => weigher.replace(/Weigher$/, '');
  const title = found.kind[0].toUpperCase() + found.kind.slice(1);
  const head = h('tr', {}, h('th', {}, title), h('th', { class: 'number' }, 'Total'), used.map((i) => h('th', { class: 'number' }, name(found.weighers[i]))));
  const rows = member.scores.map((score) => h('tr', { class: score.chosen ? 'chosen' : null },
    h('td', {}, score.chosen ? `▸ ${score.host}` : score.host), h('td', { class: 'number' }, plain(score.total)),
    used.map((i) => h('td', { class: 'number', title: `raw ${plain(score.raw[i])}, normalized ${plain(score.normalized[i])}` }, plain(score.weighted[i])))));
  const said = used.length ? `The best ${number(member.scores.length)} by weighted score; ▸ is the one chosen.`
    : 'No weigher preferred any of them; the tie was broken by the seed.';
  return h('div', {}, h('p', { class: 'quiet' }, said), h('div', { class: 'scroll' }, h('table', {}, head, rows)));
}

function drawHost(found) {
  const { host } = found;
  const columns = [['total', 'total'], ['may be promised', 'cap'], ['claimed', 'claimed'], ['outside claims', 'foreign'], ['free', 'free']];
  const head = h('tr', {}, h('th', {}, 'Class'), columns.map(([title]) => h('th', { class: 'number' }, title)));
  const rows = found.use.map((use) => h('tr', {}, h('td', {}, use.resource_class),
    columns.map(([, field]) => h('td', { class: 'number' }, amount(use[field], use.resource_class)))));
  const report = host.report_age_seconds === null ? 'never' : `${age(host.report_age_seconds)} ago`;
  return [
    facts([['condition', words(host.condition)], ['why', host.reason], ['zone', host.zone], ['aggregates', host.aggregates.join(', ')],
      ['last report', report], ['live claims', number(host.claims)], ['node', host.node], ['location', found.location]]),
    ...found.differences.map((line) => h('p', {}, line)),
    h('div', { class: 'scroll' }, h('table', {}, head, rows)),
  ];
}

// -- what people do ---------------------------------------------------------------------------------

function chooses(id, field, then) {
  $(id).addEventListener('input', () => { chosen[field] = $(id).value; then(); });
}

function listen() {
  document.addEventListener('pointerdown', hold, true);
  for (const end of ['pointerup', 'pointercancel']) document.addEventListener(end, () => setTimeout(letGo), true);
  chooses('class', 'resource', round);
  chooses('window', 'window', round);
  chooses('outcome', 'outcome', round);
  chooses('order', 'order', () => { if (map.data) { arrange(); map.at = -1; paint(); } });
  chooses('find', 'find', () => { $('map-said').textContent = ''; paint(); });
  const canvas = $('map');
  canvas.addEventListener('pointermove', (event) => point(under(event), true));
  canvas.addEventListener('pointerleave', () => { if (document.activeElement !== canvas) point(-1); else $('tip').hidden = true; });
  canvas.addEventListener('click', (event) => { const k = under(event); if (k >= 0) { point(k, true); showHost(map.data.hosts[map.order[k]]); } });
  canvas.addEventListener('keydown', key);
  canvas.addEventListener('blur', () => point(-1));
  $('pause').addEventListener('click', () => {
    const paused = $('pause').getAttribute('aria-pressed') !== 'true';
    $('pause').setAttribute('aria-pressed', String(paused));
    if (paused) clearTimeout(timer); else round();
  });
  $('detail-close').addEventListener('click', () => $('detail').close());
  $('detail').addEventListener('click', (event) => { if (event.target === $('detail')) $('detail').close(); });
  document.addEventListener('visibilitychange', () => { if (document.hidden) clearTimeout(timer); else if ($('pause').getAttribute('aria-pressed') !== 'true') round(); });
  let drawing = 0;
  const all = () => { paint(); if (last.rate) drawActivity(last.rate); };
  const redraw = () => { cancelAnimationFrame(drawing); drawing = requestAnimationFrame(all); };
  let width = 0;
  // Painting changes the height, which is no reason to paint again.
  const resized = ([entry]) => { if (entry.contentRect.width !== width) { width = entry.contentRect.width; redraw(); } };
  new ResizeObserver(resized).observe(canvas.parentElement);
  for (const query of ['(prefers-color-scheme: dark)', '(resolution: 1dppx)']) matchMedia(query).addEventListener('change', redraw);
  listenToken();
}

function listenToken() {
  const dialog = $('token-dialog');
  const keep = (value) => {
    try { if (value) sessionStorage.setItem(TOKEN, value); else sessionStorage.removeItem(TOKEN); } catch { /* no storage: no token */ }
    $('token-value').value = '';
    $('token').textContent = value ? 'Token: set' : 'Token';
    dialog.close();
    round();
  };
  const use = () => { const value = $('token-value').value.trim(); if (value) keep(value); };
  $('token').textContent = token() ? 'Token: set' : 'Token';
  $('token').addEventListener('click', () => dialog.showModal());
  $('token-use').addEventListener('click', use);
  $('token-value').addEventListener('keydown', (event) => { if (event.key === 'Enter') use(); });
  $('token-forget').addEventListener('click', () => keep(''));
  $('token-cancel').addEventListener('click', () => dialog.close());
}

listen();
round();
