// The operator's page, of `larder serve --model NAME` at /ui, of `larder proxy` and GGUF files at /larder/ui. Asks the
// server's routes, and draws what they say. Text reaches the page by textContent only: what a client put into a request
// is never markup.
'use strict';

const POLL_MS = 1000;
const PATIENCE_MS = 5000;  // of a poll: a server that hangs keeps its connections
const KEPT_POLLS = 600;
const TIERS = ['device', 'host', 'storage'];
const IS_FRONT = location.pathname.startsWith('/larder/');  // of llama.cpp: its slots are the device
const ROUTES = IS_FRONT ?
  {info: '/larder/status', recent: '/larder/recent', explain: '/larder/explain', flush: '/larder/flush'} :
  {info: '/server_info', recent: '/recent_requests', explain: '/explain', flush: '/flush_cache?timeout=30'};
const nameOf = (tier) => IS_FRONT && tier === 'device' ? 'slot' : tier;
const byId = (id) => document.getElementById(id);
const history = [];  // {at, prompt, device, host, storage}: sums since the server's start

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

const countText = (count) => count.toLocaleString('en-US');
const percentText = (share) => `${(100 * share).toFixed(1)} %`;
const secondsText = (seconds) => seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(1000 * seconds).toFixed(1)} ms`;

async function ask(method, target, body, signal) {
  const headers = {};
  const isOpenToUsers = IS_FRONT || target === ROUTES.info;
  const key = isOpenToUsers ? byId('key').value : byId('admin_key').value || byId('key').value;
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const reply = await fetch(target, {method, headers, body, signal, cache: 'no-store'});
  const text = await reply.text();
  if (reply.ok) return text;
  let why = text.trim();
  try {
    const parsed = JSON.parse(text);
    why = typeof parsed.error === 'string' ? parsed.error : parsed.error.message;
  } catch (ignored) { /* plain text */ }
  if (reply.status === 401) why += `; its ${isOpenToUsers ? 'API key' : 'admin key, or else its API key,'} goes above`;
  const refusal = new Error(`${method} ${target}: ${reply.status} ${why}`);
  refusal.status = reply.status;
  throw refusal;
}

const look = (target) => ask('GET', target, undefined, AbortSignal.timeout(PATIENCE_MS)).then(JSON.parse);

// --- what is polled ---

// What both kinds of servers say, in the words of /server_info.
function stateOf(info) {
  if (!IS_FRONT) return info.internal_states[0];
  return {num_running_reqs: info.slots.busy, num_queue_reqs: info.slots.waiting, prompt_tokens: info.prompt_tokens,
          cached_tokens: info.cached_tokens, tiers: info.tiers, storage: info.backend?.store,
          storage_health: {backend: info.backend?.backend, breakers: info.backend?.breakers}};
}

function drawOverview(info, state) {
  byId('model').textContent = `${info.served_model_name || info.model}, pages of ${info.page_size} tokens`;
  byId('running').textContent = state.num_running_reqs;
  byId('waiting').textContent = state.num_queue_reqs;
  const cached = state.cached_tokens;
  history.push({at: Date.now(), prompt: state.prompt_tokens, device: cached.device, host: cached.host,
                storage: cached.storage});
  const last = history[history.length - 1];
  if (history.length > 1 && last.prompt < history[history.length - 2].prompt) history.splice(0, history.length - 1);
  if (history.length > KEPT_POLLS) history.shift();
  const sum = (point) => point.device + point.host + point.storage;
  byId('hit_all').textContent = last.prompt > 0 ? percentText(sum(last) / last.prompt) : '–';
  const minute = history.find((point) => last.at - point.at <= 60000) || last;
  const prompt = last.prompt - minute.prompt;
  byId('hit_now').textContent = prompt > 0 ? percentText((sum(last) - sum(minute)) / prompt) : '–';
}

// Shares by tier of each ten polls, stacked.
function drawChart() {
  const chart = byId('chart');
  chart.replaceChildren();
  const step = Math.max(1, Math.floor(history.length / 60));
  const points = [];
  for (let i = step; i < history.length; i += step) {
    const from = history[i - step];
    const to = history[i];
    const prompt = to.prompt - from.prompt;
    points.push(prompt > 0 ? TIERS.map((tier) => (to[tier] - from[tier]) / prompt) : null);
  }
  const x = (index) => points.length > 1 ? 600 * index / (points.length - 1) : 0;
  let below = points.map(() => 0);
  TIERS.forEach((tier, t) => {
    const above = points.map((shares, i) => below[i] + (shares ? shares[t] : 0));
    const forth = above.map((share, i) => `${x(i)},${160 - 160 * share}`);
    const back = below.map((share, i) => `${x(i)},${160 - 160 * share}`).reverse();
    const outline = [...forth, ...back].join(' ');
    if (points.length > 1) chart.append(shape('polygon', {class: `area ${tier}`, points: outline}));
    below = above;
  });
  const seconds = history.length > 1 ? (history[history.length - 1].at - history[0].at) / 1000 : 0;
  byId('chart_span').textContent = `· the last ${Math.round(seconds)} s, 100 % at the top`;
}

function drawTiers(state) {
  const rows = [...state.tiers.filter((tier) => tier.tier !== 'storage')];
  byId('tiers').tBodies[0].replaceChildren(...rows.map((tier) => {
    const row = element('tr');
    const meter = element('div', undefined, 'meter');
    const bar = element('div', undefined, `bar ${tier.tier}`);
    const [part, whole] = tier.capacity > 0 ? [tier.slots, tier.capacity] : [tier.bytes, tier.capacity_bytes];
    bar.style.width = `${whole > 0 ? 100 * part / whole : 0}%`;
    meter.append(bar);
    const filled = element('td');
    filled.append(meter);
    row.append(element('td', tier.tier), element('td', tier.component), filled,
               element('td', countText(tier.slots) + (tier.capacity > 0 ? ` / ${countText(tier.capacity)}` : ''),
                       'number'),
               element('td', `${bytesText(tier.bytes)} / ${bytesText(tier.capacity_bytes)}`, 'number'));
    return row;
  }));
}

function storageLines(info, state) {
  const storage = state.storage;
  if (!storage) return [['backend', 'none is attached']];
  const lines = [
    ['backend', info.hicache_storage_backend || state.storage_health?.backend || 'attached'],
    ['pages', `${countText(storage.pages)}, ${bytesText(storage.physical_bytes)} used` +
      (storage.capacity_bytes > 0 ? ` of ${bytesText(storage.capacity_bytes)}` : '')],
    ['reads', `${countText(storage.read_hits)} found, ${countText(storage.read_misses)} not there, ` +
      `${countText(storage.read_errors)} failed`],
    ['writes', `${countText(storage.writes)}, ${countText(storage.write_errors)} failed, ` +
      `${countText(storage.declined)} declined`],
    ['evicted', countText(storage.evicted)],
    ['damaged', countText(storage.corrupt)],
  ];
  for (const [direction, breaker] of Object.entries(state.storage_health?.breakers || {})) {
    const state = breaker.state || (breaker.is_open ? 'open' : 'closed');
    lines.push([`breaker, ${direction}s`, state === 'closed' ? 'closed' :
      `${state}: ${breaker.last_error}; next try in ${secondsText(breaker.seconds_until_probe)}`]);
  }
  return lines;
}

function drawStorage(info, state) {
  byId('storage').tBodies[0].replaceChildren(...storageLines(info, state).map(([name, text]) => {
    const row = element('tr');
    row.append(element('th', name), element('td', text, /^open|^half/.test(text) ? 'bad' : ''));
    return row;
  }));
}

function fromText(request) {
  const parts = TIERS.filter((tier) => request.cached_tokens[tier] > 0)
      .map((tier) => `${countText(request.cached_tokens[tier])} ${nameOf(tier)}`);
  return parts.join(', ') || 'computed';
}

function whyText(request) {
  if (request.error) return request.error;
  if (request.passed_on) return `not looked at: ${request.passed_on}`;
  const left = request.finish === 'left' ? '; the client left' : '';
  return (request.miss ? `${request.miss.reason}: ${request.miss.text}` : 'all of it was') + left;
}

function drawRecent(requests) {
  byId('recent').tBodies[0].replaceChildren(...requests.map((request) => {
    const row = element('tr');
    row.append(element('td', new Date(1000 * request.ended_unix_seconds).toLocaleTimeString()),
               element('td', countText(request.prompt_tokens), 'number'), element('td', fromText(request)),
               element('td', whyText(request), request.error ? 'bad' : ''),
               element('td', request.ttft_seconds === null ? '–' : secondsText(request.ttft_seconds), 'number'), element('td', request.id, 'id'));
    return row;
  }));
  const served = requests.filter((request) => !request.error && request.ttft_seconds !== null);
  const times = served.map((request) => request.ttft_seconds).sort((a, b) => a - b);
  byId('ttft').textContent = times.length > 0 ? secondsText(times[Math.floor(times.length / 2)]) : '–';
}

function say(problem) {
  byId('problem').hidden = !problem;
  byId('problem').textContent = problem || '';
}

function drawHealth(text, isGood) {
  byId('health').textContent = text;
  byId('health').className = `badge ${isGood ? 'good' : 'bad'}`;
}

async function poll() {
  let isSilent = false;
  try {
    const health = await fetch('/health', {cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS)});
    drawHealth(health.ok ? 'healthy' : await health.text(), health.ok);
    const info = await look(ROUTES.info);
    const state = stateOf(info);
    drawOverview(info, state);
    drawChart();
    drawTiers(state);
    drawStorage(info, state);
    drawRecent((await look(`${ROUTES.recent}?limit=20`)).requests);
    say('');
  } catch (error) {
    isSilent = error.status === undefined;
    if (isSilent) drawHealth('no answer', false);
    say(isSilent ? `What stands here is old: ${error.message}` : error.message);
  }
  document.querySelector('main').classList.toggle('stale', isSilent);
  setTimeout(poll, POLL_MS);
}

// --- what an administrator does ---

let isBusy = false;

async function act(what, method, target, body) {
  if (isBusy) return;
  isBusy = true;
  const buttons = document.querySelectorAll('#attach_form button');
  buttons.forEach((button) => { button.disabled = true; });
  const begun = Date.now();
  const tell = () => { byId('action').textContent = `${what}: ${Math.round((Date.now() - begun) / 1000)} s so far`; };
  tell();
  const timer = setInterval(tell, 500);
  try {
    const text = await ask(method, target, body);
    const took = secondsText((Date.now() - begun) / 1000);
    byId('action').textContent = `${what}: done after ${took}. ${text.split('\n')[0]}`;
    byId('action').className = '';
  } catch (error) {
    byId('action').textContent = `${what}: ${error.message}`;
    byId('action').className = 'bad';
  } finally {
    clearInterval(timer);
    buttons.forEach((button) => { button.disabled = false; });
    isBusy = false;
  }
}

byId('attach_form').addEventListener('submit', (event) => {
  event.preventDefault();
  const wanted = {hicache_storage_backend: byId('backend').value};
  if (byId('extra').value) wanted.hicache_storage_backend_extra_config_json = byId('extra').value;
  if (byId('replace').checked) wanted.hicache_storage_replace = true;
  act('attach', 'PUT', '/hicache/storage-backend', JSON.stringify(wanted));
});
byId('detach').addEventListener('click', () => act('detach', 'DELETE', '/hicache/storage-backend'));
byId('clear').addEventListener('click', () => {
  const what = 'Drop every page from storage: of all models, adapters and tenants, also those of other servers?';
  if (confirm(what)) act('clear', 'POST', '/hicache/storage-backend/clear');
});
byId('flush').addEventListener('click', () => {
  const what = IS_FRONT ? 'Empty the host?' : 'Empty device and host, once nothing runs?';
  if (confirm(what)) act('flush', 'POST', ROUTES.flush);
});

// --- one prompt ---

// A row for each pool, three lines in it: what of the prompt's pages each tier has; and where the prompt can resume.
function drawPages(found) {
  const svg = byId('pages');
  svg.removeAttribute('hidden');  // the property is of HTML's elements only
  svg.replaceChildren();
  const left = 120, width = 480, line = 12, gap = 14;
  const x = (page) => left + width * page / Math.max(found.prompt_pages, 1);
  let y = 6;
  for (const pool of found.pools) {
    svg.append(shape('text', {x: 0, y: y + 2 * line}, pool.pool === pool.component ? pool.pool :
      `${pool.component}/${pool.pool}`));
    TIERS.forEach((tier) => {
      const pages = Math.min(pool[`${tier}_pages`], found.prompt_pages);
      svg.append(shape('rect', {class: 'page none', x: left, y, width, height: line - 2}));
      const bar = shape('rect', {class: `page ${tier}`, x: left, y, width: x(pages) - left, height: line - 2});
      bar.append(shape('title', {}, `${nameOf(tier)}: ${pages} of ${found.prompt_pages} pages of ${pool.pool}`));
      svg.append(bar);
      y += line;
    });
    y += gap;
  }
  for (const tier of TIERS) {
    const at = x(found.restore[tier].pages);
    svg.append(shape('line', {class: 'restore', x1: at, x2: at, y1: 0, y2: y}));
  }
  svg.append(shape('text', {x: left, y: y + 8}, `0 … ${countText(found.prompt_tokens)} tokens; red: resumes here`));
  svg.setAttribute('viewBox', `0 0 ${left + width + 4} ${y + 16}`);
}

byId('explain_form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const prompt = byId('prompt').value;
  const isIds = /^\s*\[[\d\s,]*\]\s*$/.test(prompt);
  try {
    const body = isIds ? {input_ids: JSON.parse(prompt)} : {text: prompt};
    const found = JSON.parse(await ask('POST', ROUTES.explain, JSON.stringify(body)));
    byId('why').className = '';
    byId('why').textContent = [found.why, ...TIERS.filter((tier) => found.restore[tier].reason)
        .map((tier) => `${nameOf(tier)}: ${found.restore[tier].reason}.`)].join(' ');
    drawPages(found);
  } catch (error) {
    byId('pages').setAttribute('hidden', '');
    byId('why').className = 'bad';
    byId('why').textContent = error.message;
  }
});

if (IS_FRONT) document.querySelectorAll('.whole').forEach((part) => { part.hidden = true; });
byId('flush').textContent = IS_FRONT ? 'Flush the host' : 'Flush device and host';
document.querySelectorAll('.device_name').forEach((name) => { name.textContent = nameOf('device'); });
byId('key_form').addEventListener('submit', (event) => event.preventDefault());
for (const name of ['key', 'admin_key']) {  // until the tab is closed
  byId(name).value = sessionStorage.getItem(`larder_${name}`) || '';
  byId(name).addEventListener('change', () => sessionStorage.setItem(`larder_${name}`, byId(name).value));
}
poll();
