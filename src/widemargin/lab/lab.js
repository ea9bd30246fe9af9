// Draws the embedded data. It contains no formula of a loss: curves are looked up, never computed.
'use strict';
(() => {
  const facts = JSON.parse(document.getElementById('facts').textContent);
  const colours = JSON.parse(document.getElementById('colours').textContent);
  const films = JSON.parse(document.getElementById('films').textContent);
  const at = id => document.getElementById(id);
  const NS = 'http://www.w3.org/2000/svg';
  const names = Object.keys(facts.families);
  const cache = {};

  const half = bits => {  // IEEE half precision to a number
    const sign = bits & 0x8000 ? -1 : 1, power = (bits >> 10) & 31, part = bits & 1023;
    if (power === 0) return sign * part * 2 ** -24;
    if (power === 31) return part ? NaN : sign * Infinity;
    return sign * (1 + part / 1024) * 2 ** (power - 15);
  };
  const inflate = async text => {
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };
  // Upper bytes before lower ones, of the differences from one angle to the next.
  const decodeCurves = async text => {
    const bytes = await inflate(text), count = bytes.length / 2, values = new Float32Array(count);
    let bits = 0;
    for (let i = 0; i < count; i++) {
      if (i % facts.angles.length === 0) bits = 0;
      bits = (bits + (bytes[i] << 8) + bytes[count + i]) & 0xffff;
      values[i] = half(bits);
    }
    return values;
  };
  const decodeAll = () => Promise.all(names.flatMap(name => ['targets', 'curves'].map(async what => {
    cache[name + '/' + what] = await decodeCurves(facts.families[name][what]);
  })));

  // ---------------------------------------------------------------- settings
  const state = {chosen: ['softmax', 'cosface', 'arcface', 'arcgrad'], s: 4, m: 3, c: 2, between: 1, gap: 5};
  const places = family => {
    const margins = Math.max(1, family.margins.length);
    const si = family.scale_input === 'nothing' ? 0 : state.s;
    const mi = family.margins.length ? Math.min(margins - 1, Math.round(state.m * (margins - 1) / 8)) : 0;
    return {si, mi, spot: si * margins + mi};
  };
  const lossSpec = name => {
    const family = facts.families[name], {si, mi} = places(family);
    const inside = [];
    if (family.scale_input === 's') inside.push('s=' + facts.scales[si]);
    if (family.margins.length) inside.push(family.margin_option + '=' + family.margins[mi]);
    if (family.extra_options) inside.push(family.extra_options);
    const length = family.scale_input === 'length' ? ', ‖x‖=' + facts.scales[si] : '';
    return name + (inside.length ? '(' + inside.join(', ') + ')' : '') + length;
  };
  const curve = (name, kind) => {
    const family = facts.families[name], {spot} = places(family), n = facts.angles.length;
    if (kind === 'target') {
      const start = (family.scale_input === 'nothing' ? spot * facts.classes.length + state.c : spot) * n;
      return cache[name + '/targets'].subarray(start, start + n);
    }
    const start = ((spot * facts.classes.length + state.c) * facts.kinds.length + facts.kinds.indexOf(kind)) * n;
    return cache[name + '/curves'].subarray(start, start + n);
  };

  // ---------------------------------------------------------------- drawing
  const make = (tag, attributes, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const ticks = (low, high, about, degrees) => {
    if (degrees) return [-30, 0, 30, 60, 90, 120, 150, 180].filter(v => v >= low && v <= high);
    const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(f => f * power).find(f => f >= rough) || 10 * power;
    const ticks = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) ticks.push(+v.toPrecision(8));
    return ticks;
  };
  const tidy = v => Math.abs(v) >= 1e4 ? v.toExponential(0) : String(v);
  const W = 560, H = 330, L = 56, R = 540, T = 16, B = 276;

  const lines = (id, across, unit, kind, mark) => {
    const svg = at(id);
    svg.replaceChildren(make('title', {}, svg.dataset.title));
    const rows = state.chosen.map(name => [name, curve(name, kind)]);
    let low = Infinity, high = -Infinity;
    for (const [, values] of rows) for (const v of values) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
    if (!(low < Infinity)) { low = 0; high = 1; }
    if (low === high) { low -= 1; high += 1; }
    const x = v => L + (v - across[0]) / (across[across.length - 1] - across[0]) * (R - L);
    const y = v => B - (v - low) / (high - low) * (B - T);
    for (const v of ticks(low, high, 5)) {
      svg.append(make('line', {class: 'grid', x1: L, x2: R, y1: y(v), y2: y(v)}));
      svg.append(make('text', {class: 'tick', x: L - 8, y: y(v) + 4, 'text-anchor': 'end'}, tidy(v)));
    }
    for (const v of ticks(across[0], across[across.length - 1], 7, true)) {
      svg.append(make('line', {class: 'grid', x1: x(v), x2: x(v), y1: T, y2: B}));
      svg.append(make('text', {class: 'tick', x: x(v), y: B + 20, 'text-anchor': 'middle'}, v + '°'));
    }
    svg.append(make('text', {class: 'tick', x: (L + R) / 2, y: B + 44, 'text-anchor': 'middle'}, unit));
    if (mark !== undefined && mark <= across[across.length - 1]) {
      svg.append(make('line', {class: 'axis', x1: x(mark), x2: x(mark), y1: T, y2: B, 'stroke-dasharray': '5 4'}));
      svg.append(make('text', {class: 'tick', x: x(mark) + 5, y: T + 12}, 'Eq. 19: ' + mark.toFixed(1) + '°'));
    }
    rows.forEach(([name, values], k) => {
      const points = Array.from(values, (v, i) => Number.isFinite(v) ? x(across[i]).toFixed(1) + ',' + y(v).toFixed(1) : '').join(' ');
      const line = make('polyline', {points, fill: 'none', stroke: colours[name], 'stroke-width': 2.4});
      if (k % 2) line.setAttribute('stroke-dasharray', '8 4');
      line.append(make('title', {}, lossSpec(name)));
      svg.append(line);
    });
    const middle = Math.floor(across.length / 2);
    at(id + '-numbers').replaceChildren(...rows.flatMap(([name, values], k) => {
      const value = document.createElement('b');
      value.textContent = Number(values[middle]).toPrecision(3);
      value.dataset.loss = name;
      return [document.createTextNode((k ? ', ' : 'at ' + across[middle] + '°: ') + name + ' '), value];
    }));
  };

  const spot = (radius, degrees) => [150 + radius * Math.cos(degrees * Math.PI / 180), 150 - radius * Math.sin(degrees * Math.PI / 180)];
  const sector = (from, to, radius) => {
    const [x1, y1] = spot(radius, from), [x2, y2] = spot(radius, to);
    return `M150,150 L${x1.toFixed(2)},${y1.toFixed(2)} A${radius},${radius} 0 ${to - from > 180 ? 1 : 0} 0 ${x2.toFixed(2)},${y2.toFixed(2)} Z`;
  };
  const regions = () => {
    const holder = at('regions');
    holder.replaceChildren();
    const apart = facts.between[state.between], tints = ['#4477AA', '#EE6677', '#228833'];
    for (const name of state.chosen) {
      const family = facts.families[name], {spot: place} = places(family);
      const svg = make('svg', {viewBox: '0 0 300 330', role: 'img', 'aria-label': 'decision regions of ' + lossSpec(name)});
      const weights = apart === 120 ? [90, 210, 330] : [90 + apart / 2, 90 - apart / 2];
      const [inner, outer] = family.edges[place][state.between];
      svg.append(make('circle', {cx: 150, cy: 150, r: 120, fill: 'none', class: 'grid'}));
      weights.forEach((w, k) => {
        const [a, b] = weights.length === 3 ? [w - inner, w + inner] : k ? [w - outer, w + inner] : [w - inner, w + outer];
        svg.append(make('path', {d: sector(a, b, 120), fill: tints[k], 'fill-opacity': 0.3, stroke: tints[k]}));
        const [x, y] = spot(120, w), [tx, ty] = spot(136, w);
        svg.append(make('line', {x1: 150, y1: 150, x2: x, y2: y, stroke: tints[k], 'stroke-width': 3}));
        svg.append(make('text', {x: tx, y: ty + 5, 'text-anchor': 'middle'}, 'W' + (k + 1)));
      });
      const band = Math.max(0, apart - 2 * inner);
      svg.append(make('text', {x: 150, y: 305, 'text-anchor': 'middle'}, lossSpec(name)));
      svg.append(make('text', {class: 'tick', x: 150, y: 323, 'text-anchor': 'middle'}, 'no man’s land ' + band.toFixed(1) + '°'));
      const box = document.createElement('div');
      box.append(svg);
      holder.append(box);
    }
  };

  const film = k => {
    films.forEach((one, which) => {
      const svg = at('film' + which), frame = one.frames[k];
      svg.replaceChildren(make('title', {}, svg.dataset.title));
      const rings = [70, 95, 120];
      svg.append(make('path', {d: 'M20,150 A130,130 0 0 1 280,150 Z', fill: 'none', class: 'grid'}));
      for (const degrees of [0, 30, 60, 90, 120, 150, 180]) {
        const [x, y] = spot(130, degrees);
        svg.append(make('line', {class: 'grid', x1: 150, y1: 150, x2: x, y2: y}));
        const [tx, ty] = spot(142, degrees);
        svg.append(make('text', {class: 'tick', x: tx, y: ty + 3, 'text-anchor': 'middle'}, degrees + '°'));
      }
      frame.own.forEach((degrees, i) => {
        const radius = rings[one.y[i] % 3] + (i * 7 % 17) - 8, tint = ['#4477AA', '#EE6677', '#228833'][one.y[i] % 3];
        const [x, y] = spot(radius, degrees), [tx, ty] = spot(radius, Math.max(0, degrees - 14 * frame.pull[i]));
        svg.append(make('line', {x1: x, y1: y, x2: tx, y2: ty, stroke: tint, opacity: 0.6}));
        svg.append(make('circle', {cx: x, cy: y, r: 2.2, fill: tint}));
      });
      at('film' + which + '-numbers').textContent =
        `s = ${one.s}: mean gap ${frame.gap}°, Eq. 19 gives ${one.theory}°; accuracy ${frame.right} %`;
    });
  };

  const which = () => {
    const c = facts.classes[state.c], gap = facts.wanted[state.gap], s = facts.suggested[state.c][state.gap];
    at('answer').textContent = `For ${c.toLocaleString('en')} classes and a mean gap of ${gap}°: s = ${s.toPrecision(3)}`;
    at('gap-value').textContent = gap + '°';
  };

  // ---------------------------------------------------------------- everything
  const draw = () => {
    at('s-value').textContent = facts.scales[state.s];
    at('m-value').textContent = 'step ' + state.m + ' of 8';
    at('c-value').textContent = facts.classes[state.c].toLocaleString('en');
    const theory = facts.theory[state.c][state.s] * 180 / Math.PI;
    lines('target', facts.angles, 'angle of the target', 'target');
    lines('loss', facts.angles, 'angle of the target, all others at 90°', 'loss');
    lines('pull', facts.angles, 'angle of the target, all others at 90°', 'pull');
    lines('gap_loss', facts.gaps, 'gap: angle of the others less that of the target', 'gap_loss', theory);
    lines('gap_pull', facts.gaps, 'gap: angle of the others less that of the target', 'gap_pull', theory);
    regions();
    which();
    at('legend').replaceChildren(...state.chosen.map(name => {
      const item = document.createElement('span'), chip = document.createElement('i');
      chip.style.background = colours[name];
      item.append(chip, ' ' + lossSpec(name) + '  ');
      return item;
    }));
    const words = new URLSearchParams({loss: state.chosen.join(','), s: facts.scales[state.s], m: state.m, C: facts.classes[state.c], between: facts.between[state.between], gap: facts.wanted[state.gap]});
    history.replaceState(null, '', '#' + words);
  };
  const read = () => {
    const words = new URLSearchParams(location.hash.slice(1));
    const selected = (words.get('loss') || '').split(',').filter(name => names.includes(name));
    if (selected.length) state.chosen = selected;
    const nearest = (list, text, now) => {
      const value = Number(text);
      if (text === null || !Number.isFinite(value)) return now;
      return list.reduce((best, v, i) => Math.abs(v - value) < Math.abs(list[best] - value) ? i : best, 0);
    };
    state.s = nearest(facts.scales, words.get('s'), state.s);
    state.c = nearest(facts.classes, words.get('C'), state.c);
    state.m = nearest([0, 1, 2, 3, 4, 5, 6, 7, 8], words.get('m'), state.m);
    state.between = nearest(facts.between, words.get('between'), state.between);
    state.gap = nearest(facts.wanted, words.get('gap'), state.gap);
    for (const name of names) at('use-' + name).checked = state.chosen.includes(name);
    for (const key of ['s', 'm', 'c', 'gap']) at(key).value = state[key];
    at('between').value = state.between;
  };
  for (const name of names) at('use-' + name).addEventListener('change', () => {
    const chosen = names.filter(other => at('use-' + other).checked);
    if (chosen.length) state.chosen = chosen; else at('use-' + name).checked = true;
    draw();
  });
  for (const key of ['s', 'm', 'c', 'gap']) at(key).addEventListener('input', () => { state[key] = Number(at(key).value); draw(); });
  at('between').addEventListener('change', () => { state.between = Number(at('between').value); draw(); });
  at('frame').addEventListener('input', () => film(Number(at('frame').value)));
  let playing = null;
  at('play').addEventListener('click', () => {
    if (playing) { clearInterval(playing); playing = null; at('play').textContent = 'Play'; return; }
    at('play').textContent = 'Pause';
    playing = setInterval(() => {
      at('frame').value = (Number(at('frame').value) + 1) % films[0].frames.length;
      film(Number(at('frame').value));
    }, 260);
  });
  decodeAll().then(() => {
    window.addEventListener('hashchange', () => { read(); draw(); });
    read();
    draw();
    film(0);
    document.querySelector('[data-loading]').removeAttribute('data-loading');
  });
})();
