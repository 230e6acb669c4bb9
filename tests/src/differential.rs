//! The differential test: the same packets and tables through the programs in the kernel and through the same code on
//! this host.
//!
//! Verdicts, packet bytes and written state must be equal. The two clocks differ a little, so times are not compared.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use lb_common::event::{Event, Hook, Return, Verdict, event_counter, verdict_counter};
use lb_common::fake::{Fake, Step, fields, is_fast, run, run_whole, wrong_checksums};
use lb_common::flow::{Affinity, Client, Flow, FlowKey, Fragment, Ports};

pub mod bpf;
pub mod hooks;
mod kernel;
pub mod random;
mod routes;
mod sockets;
mod sums;

pub use kernel::{Kernel, Run};
pub use sums::sums;

/// A difference between host and kernel.
#[derive(Debug)]
pub struct Difference {
    pub what: String,
}

/// The result of a sequence of packets in host and kernel.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The first difference, if there is one.
    pub difference: Option<Difference>,
    /// The hook and the host's verdict of each packet; `None` for a packet on which the kernel runs no program.
    pub verdicts: Vec<Option<(Hook, Verdict)>>,
    /// The verdicts of the fast path, with their numbers.
    pub fast: BTreeMap<(Hook, Verdict), u64>,
    /// The events that were counted, with their numbers.
    pub events: BTreeMap<Event, u64>,
}

impl Outcome {
    fn ends(mut self, what: String) -> Self {
        self.difference = Some(Difference { what });
        self
    }
}

/// The number of attempts to run a sequence of packets without the kernel's tick changing during a packet.
const TURNS: usize = 8;

/// Runs packets through both and compares after each packet. State is compared at the end, or after each packet if
/// `careful`.
pub fn compare(
    kernel: &mut Kernel,
    tables: &Fake,
    steps: &[Step],
    careful: bool,
) -> Result<Outcome> {
    for _ in 0..TURNS {
        if let Some(outcome) = compare_once(kernel, tables, steps, careful)? {
            return Ok(outcome);
        }
    }
    bail!("a packet takes longer than a tick of the clock")
}

/// One attempt of [`compare`]; `None` if the kernel's tick changed during a packet.
fn compare_once(
    kernel: &mut Kernel,
    tables: &Fake,
    steps: &[Step],
    careful: bool,
) -> Result<Option<Outcome>> {
    let host = tables.clone();
    kernel.load(&host)?;
    let mut outcome = Outcome::default();
    for (index, step) in steps.iter().enumerate() {
        let tick = kernel.fresh_tick()?;
        host.clock.set(bpf::now());
        host.ticks.set(Some(tick));
        host.events.borrow_mut().clear();
        let Some(run_there) = kernel.run(step)? else {
            outcome.verdicts.push(None);
            continue;
        };
        if kernel.tick()? != tick {
            return Ok(None);
        }
        let whole = host.clone();
        let is_fast = is_fast(step, &whole.clone());
        let (verdict, bytes) = run(step, &host);
        if run_whole(step, &whole) != (verdict, bytes.clone())
            || whole.flows != host.flows
            || whole.transient != host.transient
            || whole.events != host.events
        {
            let what = format!("packet {index}: the whole path alone does not end as {verdict:?}");
            return Ok(Some(outcome.ends(format!("{what}\n{step:?}"))));
        }
        outcome.verdicts.push(Some((step.hook, verdict)));
        if is_fast {
            *outcome.fast.entry((step.hook, verdict)).or_default() += 1;
        }
        for (event, count) in &*host.events.borrow() {
            *outcome.events.entry(*event).or_default() += count;
        }
        let here = Run {
            code: code(step.hook, verdict),
            bytes,
            counters: counted(&host, step.hook, verdict),
        };
        let at = format!("packet {index} at {:?}: host {verdict:?}", step.hook);
        if let Some(what) = differ(&here, &run_there).or_else(|| spoilt(step, verdict, &here.bytes))
        {
            return Ok(Some(outcome.ends(format!("{at}: {what}\n{step:?}"))));
        }
        if careful && let Some(what) = state(&host, kernel)? {
            return Ok(Some(outcome.ends(format!("after {at}: {what}\n{step:?}"))));
        }
    }
    if careful {
        return Ok(Some(outcome));
    }
    match state(&host, kernel)? {
        None => Ok(Some(outcome)),
        // Run again with a comparison after each packet, to find the packet that causes the difference.
        Some(what) => {
            let again = compare(kernel, tables, steps, true)?;
            if again.difference.is_none() {
                bail!("state differed once, and not when run again: {what}");
            }
            Ok(Some(again))
        }
    }
}

const fn code(hook: Hook, verdict: Verdict) -> u32 {
    match (hook, verdict) {
        (Hook::ExternalXdp, Verdict::Pass(_) | Verdict::Translated(_)) => 2,
        (Hook::ExternalXdp, Verdict::Returned(_)) => 3,
        (Hook::ExternalXdp, Verdict::Drop(_)) => 1,
        // `XDP_REDIRECT`.
        (Hook::ExternalXdp, Verdict::Redirected(_)) => 4,
        (_, Verdict::Pass(_) | Verdict::Translated(_)) => u32::MAX,
        // `TC_ACT_REDIRECT`. At egress hooks, a drop is a redirect to an interface that does not exist.
        (_, Verdict::Returned(_) | Verdict::Redirected(_))
        | (Hook::PodEgress | Hook::ExternalEgress | Hook::HostEgress, Verdict::Drop(_)) => 7,
        (_, Verdict::Drop(_)) => 2,
    }
}

fn counted(host: &Fake, hook: Hook, verdict: Verdict) -> BTreeMap<u32, u64> {
    let events = Event::ALL.iter().map(|event| (event_counter(*event), host.counted(*event)));
    events.filter(|(_, count)| *count > 0).chain([(verdict_counter(hook, verdict), 1)]).collect()
}

fn name(counter: u32) -> String {
    let verdict = counter % Verdict::COUNT;
    let named = Verdict::all().nth(verdict as usize);
    let hook = Hook::ALL.get((counter / Verdict::COUNT) as usize);
    match (hook, named) {
        (Some(_), Some(verdict)) => format!("{verdict:?}"),
        _ => format!("event {}", counter as usize - Hook::ALL.len() * Verdict::COUNT as usize),
    }
}

fn differ(here: &Run, there: &Run) -> Option<String> {
    if here.counters != there.counters {
        let names: Vec<String> = there.counters.keys().map(|counter| name(*counter)).collect();
        return Some(format!("the kernel counted {names:?}"));
    }
    if here.code != there.code {
        return Some(format!("return code {} expected {}", there.code, here.code));
    }
    if here.bytes != there.bytes {
        let (left, right) = (fields(&here.bytes), fields(&there.bytes));
        let pairs = left.iter().zip(&right).filter(|(left, right)| left != right);
        let text: Vec<String> =
            pairs.map(|(left, right)| format!("{left:02x?} kernel {right:02x?}")).collect();
        return Some(format!("bytes ({} and {}): {text:#?}", here.bytes.len(), there.bytes.len()));
    }
    None
}

/// Checksums that were correct before and are wrong afterwards: host and kernel may be wrong in the same way.
fn spoilt(step: &Step, verdict: Verdict, bytes: &[u8]) -> Option<String> {
    // A carrier becomes a held fragment, with the checksums that this fragment arrived with.
    let is_other = matches!(verdict, Verdict::Drop(_) | Verdict::Returned(Return::Fragment));
    if is_other || !wrong_checksums(&step.packet).is_empty() {
        return None;
    }
    let wrong = wrong_checksums(bytes);
    (!wrong.is_empty()).then(|| format!("both make a wrong {wrong:?}: {bytes:02x?}"))
}

/// Steps of [`Flow::note`] (10 s) within which a note was made by this comparison.
const RECENT: u16 = 10;

fn timeless(flows: &BTreeMap<FlowKey, Flow>) -> Vec<(FlowKey, Flow)> {
    let now = Flow::note(bpf::now());
    let still = |mut flow: Flow| {
        flow.seen = 0;
        flow.begun = 0;
        if flow.noted != 0 && Flow::steps(flow.noted, now) < RECENT {
            flow.noted = u16::MAX;
        }
        flow
    };
    flows.iter().map(|(key, flow)| (*key, still(*flow))).collect()
}

fn ageless(clients: &BTreeMap<Client, Affinity>) -> Vec<(Client, Affinity)> {
    clients.iter().map(|(key, value)| (*key, Affinity { seen: 0, ..*value })).collect()
}

fn undated(fragments: &BTreeMap<Fragment, Ports>) -> Vec<(Fragment, Ports)> {
    fragments.iter().map(|(key, value)| (*key, Ports { written: 0, ..*value })).collect()
}

fn state(host: &Fake, kernel: &Kernel) -> Result<Option<String>> {
    let tables = [
        ("FLOWS", &host.flows, kernel.flows()?),
        ("TRANSIENT", &host.transient, kernel.transient()?),
    ];
    for (table, here, there) in tables {
        let (here, there) = (timeless(&here.borrow()), timeless(&there));
        if here != there {
            let only_here: Vec<_> = here.iter().filter(|entry| !there.contains(entry)).collect();
            let only_there: Vec<_> = there.iter().filter(|entry| !here.contains(entry)).collect();
            return Ok(Some(format!(
                "{table}: host only {only_here:#?} kernel only {only_there:#?}"
            )));
        }
    }
    if *host.in_use.borrow() != kernel.in_use()? {
        return Ok(Some(String::from("IN_USE")));
    }
    let (here, there) = (ageless(&host.affinity.borrow()), ageless(&kernel.affinity()?));
    if here != there {
        return Ok(Some(format!("AFFINITY: host {here:#?} kernel {there:#?}")));
    }
    if *host.direct.borrow() != kernel.direct()? {
        return Ok(Some(String::from("DIRECT_SEEN")));
    }
    if !host.own_answers.borrow().keys().eq(&kernel.own_answers()?) {
        return Ok(Some(String::from("OWN_ANSWERS")));
    }
    if *host.held.borrow() != kernel.held()? {
        let brief = |all: &BTreeMap<Fragment, lb_common::flow::Held>| -> Vec<String> {
            all.iter().map(|(key, held)| format!("{key:?}: {}", held.length)).collect()
        };
        let (here, there) = (brief(&host.held.borrow()), brief(&kernel.held()?));
        return Ok(Some(format!("HELD_FRAGMENTS: host {here:#?} kernel {there:#?}")));
    }
    if undated(&host.fragments.borrow()) != undated(&kernel.fragments()?) {
        return Ok(Some(String::from("FRAGMENTS")));
    }
    Ok(None)
}
