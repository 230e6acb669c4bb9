//! The order in which the main loop takes things in: stopping, views of the interfaces, the tick, the report of a
//! sweep, events.
//!
//! Events come last, because only they may arrive without end. The sources pause after a turn, from the moment when the
//! loop has done their work: views and ticks after each turn for a fixed time, events after a turn that took long. The
//! objects that arrive meanwhile are handled in one turn.

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

/// Work on events that takes longer than this is followed by a rest: a rollout of a Service with thousands of endpoints
/// would keep a CPU busy, and packets of pods need it too.
const LONG: Duration = Duration::from_millis(20);
/// Longest rest after events.
const LONGEST_REST: Duration = Duration::from_secs(1);

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
    /// A task that follows something has ended, which only a panic explains; the text names what it followed.
    Lost(&'static str),
}

/// The sources of work for the main loop.
pub(super) struct Turns {
    pub(super) events: mpsc::Receiver<Event>,
    views: watch::Receiver<PublishedView>,
    pub(super) sweeping: Option<Sweep>,
    tick: Duration,
    next_tick: Instant,
    next_view: Instant,
    next_events: Instant,
}

impl Turns {
    pub(super) fn new(
        events: mpsc::Receiver<Event>,
        views: watch::Receiver<PublishedView>,
    ) -> Self {
        let now = Instant::now();
        Self {
            events,
            views,
            sweeping: None,
            tick: TICK,
            next_tick: now,
            next_view: now,
            next_events: now,
        }
    }

    /// Waits for work. After a view, a tick or events, [`Turns::rest`] must be called when their work is done.
    pub(super) async fn next(&mut self, stop: &mut Stop) -> Turn {
        tokio::select! {
            // In this order: nothing may wait behind a stream of events. Without the tick no attachment is repaired, no
            // row is released, and the watchdog of the service manager expires.
            biased;
            () = stop.asked() => Turn::Stop,
            changed = changed_after(&mut self.views, self.next_view) => match changed {
                Ok(()) => Turn::View(self.views.borrow_and_update().clone()),
                Err(_) => Turn::Lost("the interfaces"),
            },
            () = sleep_until(self.next_tick.into()) => Turn::Tick,
            Some(report) = OptionFuture::from(self.sweeping.as_mut()) => {
                self.sweeping = None;
                Turn::Swept(report)
            }
            event = event_after(&mut self.events, self.next_events) => {
                event.map_or(Turn::Lost("the objects"), Turn::Event)
            }
        }
    }

    /// Lets other work come first for a while. The time begins only now, so that a tick or a view that takes longer
    /// than this time does not follow itself at once.
    pub(super) fn rest(&mut self, after: Rest) {
        match after {
            Rest::View => self.next_view = Instant::now() + VIEWS_APART,
            Rest::Tick => self.next_tick = Instant::now() + self.tick,
            Rest::Events(work) => self.next_events = Instant::now() + rest_after(work),
        }
    }
}

/// The work after which its source is at rest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rest {
    View,
    Tick,
    /// The time that the work on events took.
    Events(Duration),
}

/// Returns the rest after work on events: as long as the work if that took long, within a limit.
fn rest_after(work: Duration) -> Duration {
    if work > LONG { work.min(LONGEST_REST) } else { Duration::ZERO }
}

/// Waits until this time, then for an event. No event is lost if the future is dropped.
async fn event_after(events: &mut mpsc::Receiver<Event>, time: Instant) -> Option<Event> {
    // Without a rest, nothing waits for the timer: it counts in whole milliseconds.
    if time > Instant::now() {
        sleep_until(time.into()).await;
    }
    events.recv().await
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
        views: watch::Sender<PublishedView>,
        stop: Stop,
    }

    impl Crowd {
        fn with_tick(tick: Duration) -> Self {
            let (sender, events) = mpsc::channel(16);
            let (shows, views) = watch::channel(None);
            let sweeping = Some(tokio::spawn(async { Ok(Report::default()) }));
            let turns = Turns { sweeping, tick, ..Turns::new(events, views) };
            Self { turns, sender, views: shows, stop: Stop::new().expect("handlers") }
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
                other @ (Turn::Stop | Turn::View(_) | Turn::Lost(_)) => panic!("{other:?}"),
            }
            if ticks > 2 && sweeps > 0 && events > 0 {
                return;
            }
        }
        panic!("ticks: {ticks}, sweeps: {sweeps}, events: {events}");
    }

    #[test]
    fn events_rest_as_long_as_long_work_took() {
        let rest = |milliseconds| rest_after(Duration::from_millis(milliseconds)).as_millis();
        assert_eq!([0, 20, 21, 150, 5_000].map(rest), [0, 0, 21, 150, 1_000]);
    }

    #[tokio::test]
    async fn only_events_rest_after_events() {
        let (mut crowd, hour) = (Crowd::with_tick(TICK), Duration::from_hours(1));
        let began = Instant::now();
        crowd.turns.rest(Rest::Events(LONGEST_REST));
        assert!(crowd.turns.next_events >= began + LONGEST_REST);
        crowd.turns.next_events += hour;
        for _ in 0..2 {
            match crowd.next().await {
                Turn::Tick => crowd.turns.next_tick += hour,
                Turn::Swept(_) => {}
                other @ (Turn::Stop | Turn::View(_) | Turn::Event(_) | Turn::Lost(_)) => {
                    panic!("{other:?}")
                }
            }
        }
        // Short work, and the end of the rest.
        crowd.turns.rest(Rest::Events(LONG));
        assert!(matches!(crowd.next().await, Turn::Event(_)));
    }

    #[tokio::test]
    async fn tick_is_due_a_while_after_its_own_work_however_late_it_was() {
        let mut turns = Crowd::with_tick(TICK).turns;
        turns.next_tick = Instant::now().checked_sub(TICK * 3).expect("a machine that is up");
        turns.rest(Rest::Tick);
        assert!(turns.next_tick > Instant::now());
    }

    /// A task that panics drops its end of the channel.
    #[tokio::test]
    async fn end_of_a_task_that_follows_something_is_noticed() {
        let mut crowd = Crowd::with_tick(TICK);
        (crowd.turns.sweeping, crowd.turns.next_tick) =
            (None, Instant::now() + Duration::from_hours(1));
        let Crowd { mut turns, sender, views, mut stop } = crowd;
        drop(views);
        assert!(matches!(turns.next(&mut stop).await, Turn::Lost("the interfaces")));
        turns.next_view += Duration::from_hours(1);
        drop(sender);
        assert!(matches!(turns.next(&mut stop).await, Turn::Lost("the objects")));
    }
}
