//! One leadership: what the coordinator, the links and the keepalive do is done here in their order, one message at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shard_manager::assignment::command::{Answer, Assignment, Command, LeaseAnswer, Notice, Peer, Refusal, Reply, Snapshot};
use shard_manager::assignment::event::{Event, RequestId, Settings, Takeover};
use shard_manager::assignment::state::Changes;
use shard_manager::assignment::{Engine, State};
use shard_manager::client::ledger::{Push, PushRefusal};
use shard_manager::types::{BootInstant, ClusterId, Revision, Slot, Token};

use crate::cases;
use crate::context::{Call, Caller, Context, Message, Node, TURN, Waits, Who, held};
use crate::guards::Guard;
use crate::newcomers::Newcomers;
use crate::operators::Word;
use crate::random::{MS, span, us};
use crate::replica::refuse;
use crate::store::{LEADERSHIP, Refusal as StoreRefusal};
use crate::window::Window;

/// After that the answer of the store is not waited for any more.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(700);
const COMMAND_TIMEOUT: Duration = Duration::from_millis(1000);

/// Why a leadership is over, and when the process may campaign again.
pub struct Over;

pub struct Leadership {
    number: u64,
    /// L as this one has it.
    lease: Duration,
    /// The longest one that anybody may have been given before (L8), and who may.
    longest_before: Duration,
    before: BTreeSet<Who>,
    /// What the clock on the wall showed when it began.
    unix_ms: u64,
    engine: Engine,
    believe_until: BootInstant,
    keep: BootInstant,
    open_at: Option<BootInstant>,
    pub open: bool,
    commit: Option<InFlight>,
    sent: u64,
    callers: BTreeMap<RequestId, Caller>,
    calls: u64,
    pub links: BTreeMap<Slot, Link>,
    window: Window,
    newcomers: Newcomers,
    /// What it loaded was proven to be old: what executors do not hold is asked back, whatever operators want.
    in_doubt: bool,
    /// How often the store had lost what it had when this leadership began.
    restores: u32,
    /// For a guard: how far the engine's clock is ahead.
    ahead: Duration,
    /// **P10.** Without pauses: how long it ran so far, when it ran last, and when it last heard of whom.
    awake: Duration,
    began: BootInstant,
    ran: BootInstant,
    heard: BTreeMap<Who, Duration>,
    opened: Duration,
    opened_at: BootInstant,
}

struct InFlight {
    expected: Option<Revision>,
    changes: Changes,
    /// An answer was lost: it may have landed (L5).
    in_doubt: bool,
    again: BootInstant,
    waits: bool,
}

pub struct Link {
    pub peer: Peer,
    desired: Option<Assignment>,
    /// The attempt in flight, or the pause after it.
    attempt: Option<u64>,
    until: BootInstant,
    failures: u32,
}

impl Leadership {
    pub fn new(
        number: u64,
        until: BootInstant,
        mut loaded: Option<(Revision, State)>,
        now: BootInstant,
        context: &mut Context,
    ) -> Leadership {
        let lease = context.leases[context.random.below(context.leases.len())];
        let settings = Settings {
            lease_ttl: lease,
            settle_time: Duration::from_millis(300),
            calm_time: lease,
            rebalance_threshold: 0.1,
            exclusive_ids: context.guard == Some(Guard::IncarnationsWait),
            turn_interval: TURN,
            takeover_grace: Duration::ZERO,
            max_pages_per_commit: context.pages,
        };
        let takeover = Takeover {
            token: Token(u128::from(number)),
            // Clocks on the wall may well be wrong.
            unix_ms: match context.store.clocks_are_right {
                true if context.guard == Some(Guard::TermsFromTheClock) => 0,
                true => 1_000_000 + context.time / MS,
                false => context.random.between(1000, 1_000_000),
            },
            new_cluster: ClusterId(uuid::Uuid::from_u128(u128::from(context.random.next()))),
            number_of_shards: context.shards,
        };
        let stored = loaded.as_ref().map(|(_, state)| Duration::from_millis(state.meta.lease_ttl_ms)).unwrap_or_default();
        let known = loaded.iter().flat_map(|(_, state)| state.executors());
        let before = known.map(|(_, record)| (record.id.clone(), record.incarnation)).collect();
        if let (Some(Guard::LongerLeases), Some((_, state))) = (context.guard, &mut loaded) {
            state.meta.lease_ttl_ms = settings.lease_ttl.as_millis() as u64;
        }
        Leadership {
            number,
            lease,
            longest_before: lease.max(stored),
            before,
            unix_ms: takeover.unix_ms,
            engine: Engine::new(settings, takeover, loaded, now),
            believe_until: until,
            keep: now,
            open_at: None,
            open: false,
            commit: None,
            sent: number << 32,
            callers: BTreeMap::new(),
            calls: 0,
            links: BTreeMap::new(),
            window: Window::default(),
            newcomers: Newcomers::default(),
            in_doubt: false,
            restores: context.store.restores,
            ahead: Duration::ZERO,
            awake: Duration::ZERO,
            began: now,
            ran: now,
            heard: BTreeMap::new(),
            opened: Duration::ZERO,
            opened_at: now,
        }
    }

    pub fn run(&mut self, at: usize, now: BootInstant, inbox: Vec<Message>, context: &mut Context) -> Result<BootInstant, Over> {
        // It was due to run at the latest then; more than a turn late is a pause.
        self.awake += now.since(self.ran).min(TURN * 2);
        let ran = std::mem::replace(&mut self.ran, now);
        if context.guard == Some(Guard::Stalls) {
            self.catch_up(at, ran, now, context)?;
        }
        let mut batch = Vec::new();
        for message in inbox {
            self.take_in(at, now, message, &mut batch, context)?;
        }
        // Readers are told by tasks of their own, which need not have noticed yet that all is over.
        self.window.tell(at, now, context);
        if now >= self.believe_until && context.guard != Some(Guard::Belief) {
            context.reached("a leader gave up by its own deadline");
            let is_renewal = |event: &Event| matches!(event, Event::Renew(..));
            batch.iter().filter(|event| is_renewal(event)).for_each(|_| context.reached("a renewal was read past the deadline"));
            return Err(Over);
        }
        if let Some(commit) = &mut self.commit
            && commit.again <= now
        {
            // Not answered in time, or its pause is over: the identical commit again.
            commit.in_doubt |= commit.waits;
            if commit.in_doubt && commit.waits && context.guard == Some(Guard::UnknownOutcomes) {
                context.called_failed(&commit.changes.meta);
                self.commit = None;
                batch.push(Event::CommitFailed);
            } else {
                self.send_commit(at, now, context);
            }
        }
        if self.open_at.is_some_and(|open_at| open_at <= now) {
            self.open_at = None;
            self.open = true;
            (self.opened, self.opened_at) = (self.awake, now);
            if self.longest_before > self.lease {
                context.reached("a leader waited for longer leases than its own");
            }
            batch.push(Event::PortOpened);
        }
        self.believe(context);
        if !batch.is_empty() || now.after(self.ahead) >= self.engine.next_turn() {
            for event in batch.into_iter().chain([Event::Turn]) {
                let opens = event == Event::PortOpened;
                self.step(at, now, event, context)?;
                if opens && context.guard == Some(Guard::NewLeaderWaits) {
                    self.skip(at, now, context)?;
                }
            }
        }
        if now >= self.keep {
            self.keep = now.after(span(LEADERSHIP / 3));
            context.send(Node::Replica(at), Node::Store, Message::Keep { from: at, number: self.number, sent: now });
        }
        self.drive(at, now, context);
        let watchers = self.window.tell(at, now, context);
        let commit = self.commit.as_ref().map(|commit| commit.again);
        let turn = self.engine.next_turn().0.saturating_sub(self.ahead);
        let links = self.links.values().filter(|link| link.attempt.is_some() || link.failures > 0).map(|link| link.until);
        let own = [Some(self.keep), Some(self.believe_until), commit, watchers, self.open_at, Some(BootInstant(turn))];
        let next = own.into_iter().flatten().chain(links).filter(|at| *at > now).min();
        // Whatever is due, a coordinator never spins.
        Ok(if BootInstant(turn) <= now { now.after(span(MS)) } else { next.unwrap_or(now.after(span(MS))) })
    }

    fn believe(&mut self, context: &Context) {
        // Without its guard it believes for longer than any run lasts.
        let longer = if context.guard == Some(Guard::Belief) { Duration::from_secs(24 * 60 * 60) } else { Duration::ZERO };
        self.engine.believe_until(self.believe_until.after(self.ahead).after(longer));
    }

    /// For a guard: turns for a time in which nobody ran, as if nothing had been missed.
    fn catch_up(&mut self, at: usize, mut then: BootInstant, now: BootInstant, context: &mut Context) -> Result<(), Over> {
        while then.after(TURN) < now {
            then = then.after(TURN);
            self.step(at, then, Event::Turn, context)?;
        }
        Ok(())
    }

    /// For a guard: the engine is made to believe that a lease's time has passed since the port opened.
    fn skip(&mut self, at: usize, now: BootInstant, context: &mut Context) -> Result<(), Over> {
        let longest = self.longest_before;
        for _ in 0..us(longest + longest / 4) / us(TURN) {
            self.ahead += TURN;
            self.believe(context);
            self.step(at, now, Event::Turn, context)?;
        }
        Ok(())
    }

    fn take_in(
        &mut self,
        at: usize,
        now: BootInstant,
        message: Message,
        batch: &mut Vec<Event>,
        context: &mut Context,
    ) -> Result<(), Over> {
        match message {
            Message::Call { .. } | Message::Watch { .. } if !self.open => refuse(at, vec![message], context),
            Message::Call { from, call, mut body } => {
                let caller = Caller::executor(from, call, &body);
                if let Some(newest) = self.window.snapshot() {
                    self.newcomers.came(now, &caller, &newest);
                    cases::came(&body, &newest, context);
                }
                if let Some(guard) = context.guard {
                    guard.take_out_of(&mut body, self.window.snapshot().as_ref());
                }
                let request = self.wait(caller);
                batch.push(match body {
                    Call::Register(registration) => Event::Register(request, registration),
                    Call::Renew(renewal) => Event::Renew(request, renewal),
                    Call::Deregister(departure) => Event::Deregister(request, departure),
                });
            }
            Message::Watch { from, stream, known } => {
                let seen = self.window.newest().and_then(|edition| edition.is_behind(known));
                match seen.filter(|_| context.guard != Some(Guard::HigherTermsOfReaders)) {
                    Some(seen) => {
                        let request = self.wait(Caller::new(Waits::Reader { from, stream, known }));
                        batch.push(Event::Heard(request, seen));
                    }
                    None => self.window.open(from, stream, known, now),
                }
            }
            Message::Word(word) => {
                let request = self.wait(Caller::new(Waits::Operator));
                context.operators.took_in(self.number, request, word.clone());
                batch.push(match word {
                    Word::Wish(id, wish) => Event::Wish(request, id, wish),
                    Word::Demand(demand) => Event::Demand(request, demand),
                });
            }
            Message::Probed(slot, incarnation, healthy) => {
                context.operators.looks_change();
                batch.push(Event::Probed { slot, incarnation, healthy });
            }
            Message::Kept { number, sent } if number == self.number => {
                self.believe_until = self.believe_until.max(sent.after(span(LEADERSHIP)));
            }
            Message::Stored { number, attempt, result } if number == self.number => {
                let Some(commit) = &mut self.commit else { return Ok(()) };
                if commit.changes.meta.attempt != attempt {
                    return Ok(());
                }
                match result {
                    Ok(revision) => {
                        if commit.in_doubt {
                            context.reached("a commit in doubt was settled");
                        }
                        self.commit = None;
                        batch.push(Event::Committed { revision });
                    }
                    Err(StoreRefusal::Unavailable) if !commit.in_doubt => {
                        context.called_failed(&commit.changes.meta);
                        self.commit = None;
                        if context.guard != Some(Guard::FailedCommits) {
                            batch.push(Event::CommitFailed);
                        }
                    }
                    Err(StoreRefusal::Unavailable) => {
                        (commit.again, commit.waits) = (now.after(span(100 * MS)), false);
                    }
                    Err(StoreRefusal::LeadershipLost | StoreRefusal::ConcurrentModification) => {
                        context.log(|| format!("replica {at}: the store refuses: {result:?}"));
                        context.reached(match result {
                            Err(StoreRefusal::LeadershipLost) => "the fence refused a commit",
                            _ => "a leader found another revision in the store than its own",
                        });
                        return Err(Over);
                    }
                }
            }
            Message::Pushed { number, answer } => self.take_in_pushed(now, number, answer, batch, context),
            _ => {}
        }
        Ok(())
    }

    fn wait(&mut self, caller: Caller) -> RequestId {
        self.calls += 1;
        self.callers.insert(RequestId(self.calls), caller);
        RequestId(self.calls)
    }

    fn take_in_pushed(
        &mut self,
        now: BootInstant,
        number: u64,
        answer: Result<(shard_manager::types::Version, shard_manager::holdings::Holdings), PushRefusal>,
        batch: &mut Vec<Event>,
        context: &mut Context,
    ) {
        let Some(link) = self.links.values_mut().find(|link| link.attempt == Some(number)) else { return };
        link.attempt = None;
        let rests = match answer {
            Ok((mut mark, mut held)) => {
                let rests = link.desired.as_ref().is_some_and(|desired| *desired.holdings == held);
                if let (Some(guard), Some(newest)) = (context.guard, self.window.snapshot()) {
                    mark = if guard == Guard::Marks { mark.max(newest.version) } else { mark };
                    held = guard.take_out_of_held(&held, &newest);
                }
                batch.push(Event::Applied { slot: link.peer.slot, incarnation: link.peer.incarnation, mark, held });
                rests
            }
            Err(refusal) => matches!(refusal, PushRefusal::StaleTerm { .. }),
        };
        link.failures = if rests { 0 } else { link.failures + 1 };
        link.until = now.after(span(50 * MS) * (1 << link.failures.min(5)));
    }

    /// Gives commands, and gives up on those that were not answered.
    fn drive(&mut self, at: usize, now: BootInstant, context: &mut Context) {
        for link in self.links.values_mut() {
            if link.attempt.is_some() && link.until <= now {
                link.attempt = None;
                link.failures += 1;
                link.until = now.after(span(50 * MS) * (1 << link.failures.min(5)));
            }
            if link.attempt.is_none() && link.failures > 0 && link.until <= now {
                self.sent += 1;
                give(at, now, self.sent, link, context);
            }
        }
    }

    fn send_commit(&mut self, at: usize, now: BootInstant, context: &mut Context) {
        let Some(commit) = &mut self.commit else { return };
        (commit.again, commit.waits) = (now.after(REQUEST_TIMEOUT), true);
        let (expected, changes) = (commit.expected, commit.changes.clone());
        self.sent += 1;
        let commit = Message::Commit { from: at, number: self.number, request: self.sent, expected, changes };
        context.send(Node::Replica(at), Node::Store, commit);
    }

    fn step(&mut self, at: usize, now: BootInstant, event: Event, context: &mut Context) -> Result<(), Over> {
        let commands = self.engine.step(now.after(self.ahead), event);
        let unstarted = cases::unstarted(&commands);
        self.in_doubt |= cases::is_doubtful(&commands);
        for command in commands {
            // Crashes between any two steps, those of a commit among them.
            if context.random.per_mille(if context.calm { 0 } else { 2 }) {
                context.log(|| format!("replica {at} crashes in the middle"));
                context.reached("a leader crashed between two steps");
                context.crash = Some(at);
                return Err(Over);
            }
            match command {
                Command::Commit { expected, changes } => {
                    context.expect(self.commit.is_none(), || "two commits in flight".to_owned());
                    let shown = now.after(self.ahead).since(self.began);
                    context.operators.commits_at(self.number, self.unix_ms + shown.as_millis() as u64);
                    let early = Revision(expected.map_or(1, |revision| revision.0 + 1));
                    self.commit = Some(InFlight { expected, changes, in_doubt: false, again: now, waits: false });
                    self.send_commit(at, now, context);
                    if context.guard == Some(Guard::DurableFirst) {
                        self.commit = None;
                        self.step(at, now, Event::Committed { revision: early }, context)?;
                    }
                }
                Command::Publish(snapshot) => {
                    context.published(&snapshot);
                    match self.window.snapshot() {
                        Some(before) => {
                            let held_back = self.newcomers.check(now, self.lease, &before, &snapshot);
                            context.take(held_back);
                            if !self.in_doubt {
                                let released = context.operators.check_released(self.number, &before, &snapshot, &unstarted);
                                context.take(released);
                            }
                        }
                        None => self.open_at = Some(now.after(span(context.random.between(MS, 50 * MS)))),
                    }
                    self.window.publish(snapshot);
                }
                Command::Connect(peer) => {
                    let link = Link { desired: None, attempt: None, until: now, failures: 0, peer };
                    self.links.insert(link.peer.slot, link);
                }
                Command::Disconnect(slot) => {
                    self.links.remove(&slot);
                }
                Command::Send(assignment) => {
                    context.commanded(&assignment);
                    let Some(link) = self.links.get_mut(&assignment.slot) else { continue };
                    let slot = assignment.slot;
                    if context.guard == Some(Guard::OutcomesProveNothing) {
                        let (incarnation, mark) = (assignment.incarnation, assignment.version);
                        let held = (*assignment.holdings).clone();
                        link.desired = Some(assignment);
                        self.step(at, now, Event::Applied { slot, incarnation, mark, held }, context)?;
                    } else {
                        link.desired = Some(assignment);
                    }
                    let Some(link) = self.links.get_mut(&slot) else { continue };
                    link.failures = 0;
                    self.sent += 1;
                    give(at, now, self.sent, link, context);
                }
                Command::Reply(request, reply) => {
                    let caller = self.callers.remove(&request);
                    if caller.as_ref().is_some_and(|caller| matches!(caller.waits, Waits::Operator)) {
                        context.answered_operator(self.number, request, &reply);
                    } else if let Some(caller) = caller {
                        self.reply(at, now, &caller, reply, context);
                    }
                }
                Command::Notice(notice) => self.notice(at, notice, context),
            }
        }
        Ok(())
    }

    fn reply(&mut self, at: usize, now: BootInstant, caller: &Caller, mut reply: Reply, context: &mut Context) {
        context.answered(caller, &reply);
        cases::answered(&reply, context);
        if let (Ok(_), Some(who)) = (&reply, &caller.who) {
            self.heard.insert(who.clone(), self.awake);
        }
        if context.guard == Some(Guard::ExpiryFirst) && matches!(reply, Err(Refusal::LeaseEnding { .. })) {
            reply = self.renew_all_the_same(caller).map_or(reply, |lease| Ok(Answer::Lease(lease)));
        }
        if let Ok(Answer::Lease(lease)) = &reply {
            if self.restores < context.store.restores {
                context.leased_over_lost();
            }
            self.newcomers.taken_in(caller, lease.cluster_id);
        }
        match caller.waits {
            Waits::Process(process, call) => {
                context.send(Node::Replica(at), Node::Process(process), Message::Answer { call, reply: Some(reply) });
            }
            Waits::Reader { from, stream, known } if reply.is_ok() => self.window.open(from, stream, known, now),
            Waits::Reader { from, stream, .. } => {
                context.send(Node::Replica(at), Node::Reader(from), Message::Told { stream, place: 0, what: None });
            }
            Waits::Operator => {}
        }
    }

    /// For a guard: the answer that an executor would have got before the end of its lease was being committed.
    fn renew_all_the_same(&self, caller: &Caller) -> Option<LeaseAnswer> {
        let Snapshot { version, state } = self.window.snapshot()?;
        let (id, incarnation) = caller.who.as_ref()?;
        let (slot, _) = state.incarnation(id, *incarnation)?;
        Some(LeaseAnswer {
            cluster_id: state.meta.cluster_id,
            version,
            number_of_shards: state.meta.number_of_shards,
            lease_ttl: self.lease,
            assignment: Some(held(&state, slot)),
            claim_wanted: false,
        })
    }

    /// **L8, P10.** Nobody's lease ends before this process was awake for as long, since it opened its port or heard of it last.
    fn notice(&mut self, at: usize, notice: Notice, context: &mut Context) {
        context.log(|| format!("replica {at}: {notice:?}"));
        context.reached(cases::noticed(&notice));
        if matches!(notice, Notice::NotAdmitted { .. } | Notice::StoreRestored { .. }) {
            context.operators.looks_change();
        }
        if let Notice::Lapsed { id, incarnation, .. } = notice {
            let who = (id, incarnation);
            let heard = self.heard.get(&who).copied().unwrap_or(self.opened);
            let (open, silent) = (self.awake.saturating_sub(self.opened), self.awake.saturating_sub(heard));
            let longest = if self.before.contains(&who) { self.longest_before } else { Duration::ZERO };
            let early = self.ran.since(self.opened_at) < longest.max(self.lease);
            let (rule, id) = (if early { "L8" } else { "P10" }, who.0);
            context.expect(silent + TURN >= self.lease && open + TURN >= longest, || {
                format!("{rule}: replica {at} called {id} dead after it was awake for {silent:?} only, and open for {open:?}")
            });
        }
    }
}

/// The newest assignment, as a command.
fn give(at: usize, now: BootInstant, number: u64, link: &mut Link, context: &mut Context) {
    let Some(desired) = &link.desired else { return };
    (link.attempt, link.until) = (Some(number), now.after(COMMAND_TIMEOUT));
    let push = Push {
        cluster_id: desired.cluster_id,
        version: desired.version,
        executor_id: link.peer.id.to_string(),
        incarnation: link.peer.incarnation.0,
        assignment: (*desired.holdings).clone(),
    };
    context.send(Node::Replica(at), Node::Endpoint(link.peer.endpoint.clone()), Message::Push { from: at, number, push });
}
