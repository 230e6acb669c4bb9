//! The order in which the main loop takes things in: stopping, views of the interfaces, the tick, the report of a
//! sweep, events.
//!
//! Events come last, because only they may arrive without end. The other sources pause after each turn: views and ticks
//! for a fixed time from the moment when the loop has done their work.

use std::time::{Duration, Instant};

use futures::future::OptionFuture;
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::sleep_until;

use super::stop::Stop;
use crate::maps;
use crate::node::watch::PublishedView;
use crate::snapshot::Event;
use crate::sweep::Report;

/// Time between two ticks.
const TICK: Duration = Duration::from_secs(1);

/// Shortest time between two views of the interfaces that are taken in. A new pod changes the view about ten times,
/// each view has the loop compare all interfaces, and the kernel's own workers, which open the pod's link, need the
/// CPU.
const VIEWS_APART: Duration = Duration::from_millis(50);

/// A sweep that runs beside the main loop.
type Sweep = JoinHandle<Result<Report, maps::Error>>;

/// Work for one turn of the main loop.
#[derive(Debug)]
pub(super) enum Turn {
    Stop,
    View(PublishedView),
    Tick,
    Swept(Result<Result<Report, maps::Error>, JoinError>),
    Event(Event),
}

/// The sources of work for the main loop.
pub(super) struct Turns {
    pub(super) events: mpsc::Receiver<Event>,
    views: watch::Receiver<PublishedView>,
    pub(super) sweeping: Option<Sweep>,
    tick: Duration,
    next_tick: Instant,
    next_view: Instant,
}

impl Turns {
    pub(super) fn new(
        events: mpsc::Receiver<Event>,
        views: watch::Receiver<PublishedView>,
    ) -> Self {
        let now = Instant::now();
        Self { events, views, sweeping: None, tick: TICK, next_tick: now, next_view: now }
    }

    /// Waits for work. After a view or a tick, [`Turns::rest`] must be called when its work is done.
    pub(super) async fn next(&mut self, stop: &mut Stop) -> Turn {
        tokio::select! {
            // In this order: nothing may wait behind a stream of events. Without the tick no attachment is repaired, no
            // row is released, and the watchdog of the service manager expires.
            biased;
            () = stop.asked() => Turn::Stop,
            Ok(()) = changed_after(&mut self.views, self.next_view) => {
                Turn::View(self.views.borrow_and_update().clone())
            }
            () = sleep_until(self.next_tick.into()) => Turn::Tick,
            Some(report) = OptionFuture::from(self.sweeping.as_mut()) => {
                self.sweeping = None;
                Turn::Swept(report)
            }
            Some(event) = self.events.recv() => Turn::Event(event),
        }
    }

    /// Lets other work come first for a while. The time begins only now, so that a tick or a view that takes longer
    /// than this time does not follow itself at once.
    pub(super) fn rest(&mut self, after: Rest) {
        match after {
            Rest::View => self.next_view = Instant::now() + VIEWS_APART,
            Rest::Tick => self.next_tick = Instant::now() + self.tick,
        }
    }
}

/// The work after which its source is at rest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rest {
    View,
    Tick,
}

/// Waits until this time, then for a new view. No view is lost if the future is dropped.
async fn changed_after(
    views: &mut watch::Receiver<PublishedView>,
    time: Instant,
) -> Result<(), RecvError> {
    sleep_until(time.into()).await;
    views.changed().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ObjectKind;

    /// Number of turns within which a source must have its turn. Without a fair order there is no such number.
    const TURNS: usize = 100_000;

    /// A loop that always finds another event, and a sweep that ends.
    struct Crowd {
        turns: Turns,
        sender: mpsc::Sender<Event>,
        stop: Stop,
    }

    impl Crowd {
        fn with_tick(tick: Duration) -> Self {
            let (sender, events) = mpsc::channel(16);
            let (_, views) = watch::channel(None);
            let sweeping = Some(tokio::spawn(async { Ok(Report::default()) }));
            let turns = Turns { sweeping, tick, ..Turns::new(events, views) };
            Self { turns, sender, stop: Stop::new().expect("handlers") }
        }

        async fn next(&mut self) -> Turn {
            while self.sender.try_send(Event::ListBegan(ObjectKind::Service)).is_ok() {}
            self.turns.next(&mut self.stop).await
        }
    }

    #[tokio::test]
    async fn events_without_end_delay_neither_tick_nor_sweep() {
        let mut crowd = Crowd::with_tick(Duration::from_millis(1));
        let (mut ticks, mut sweeps, mut events) = (0, 0, 0);
        for _ in 0..TURNS {
            match crowd.next().await {
                Turn::Tick => {
                    ticks += 1;
                    crowd.turns.rest(Rest::Tick);
                }
                Turn::Swept(_) => sweeps += 1,
                Turn::Event(_) => events += 1,
                other @ (Turn::Stop | Turn::View(_)) => panic!("{other:?}"),
            }
            if ticks > 2 && sweeps > 0 && events > 0 {
                return;
            }
        }
        panic!("ticks: {ticks}, sweeps: {sweeps}, events: {events}");
    }

    #[tokio::test]
    async fn tick_is_due_a_while_after_its_own_work_however_late_it_was() {
        let mut turns = Crowd::with_tick(TICK).turns;
        turns.next_tick = Instant::now().checked_sub(TICK * 3).expect("a machine that is up");
        turns.rest(Rest::Tick);
        assert!(turns.next_tick > Instant::now());
    }
}
