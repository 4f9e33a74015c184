//! What each target begins with, made by our own encoders: a fuzzer finds the rest sooner from there.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;

use super::input::Maker;
use super::{Target, client, manager};
use crate::assignment::record::{End, ExecutorRecord, ShardRecord, ShardState, Standing, Wish};
use crate::assignment::state::{Inventory, Meta, Pause, Seal, State};
use crate::client::{NotOwner, Owner, Route};
use crate::rpc::watch_routing_table_response::Change;
use crate::rpc::{self, NOBODY};
use crate::store::codec::{self, HEADER_LEN, Kind};
use crate::transfer::document::{Content, Document, Taken};
use crate::types::{ClusterId, Epoch, Incarnation, ShardId, Slot, Term, Token};

type Seeds = BTreeMap<String, Vec<u8>>;

pub fn of(target: &Target) -> Seeds {
    match target.name {
        "codec" => codec(),
        "document" => document(),
        "journal" => journal(),
        "cell" => cell(),
        "config" => config(),
        "client" => client(),
        "manager" => manager(),
        "answers" => answers(),
        other => panic!("nobody made seeds for {other}"),
    }
}

fn seeds<const N: usize>(seeds: [(&str, Maker); N]) -> Seeds {
    seeds.into_iter().map(|(name, maker)| (name.to_owned(), maker.0)).collect()
}

fn begin(byte: u8) -> Maker {
    Maker::default().byte(byte)
}

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

fn state(number_of_shards: u32) -> State {
    let mut state = State::new(Meta {
        cluster_id: ClusterId(uuid(manager::CLUSTER)),
        number_of_shards,
        term: Term(manager::TERM),
        token: Token(1),
        attempt: 3,
        lease_ttl_ms: 10_000,
        inventory: Inventory::default(),
        seal: Seal::Open,
        pause: None,
    });
    for slot in [0, 2, 17] {
        let at = slot as usize;
        let record = ExecutorRecord {
            id: format!("e{slot}").parse().unwrap(),
            incarnation: Incarnation(5 + u64::from(slot)),
            endpoint: format!("http://h{slot}:1"),
            weight: 1 + slot,
            wish: [Wish::None, Wish::Cordon, Wish::Drain, Wish::None][at % 4],
            leaving: slot == 2,
            standing: [Standing::Present, Standing::Superseded, Standing::Gone][at % 3],
        };
        state.set_executor(Slot(slot), Some(record));
    }
    let owners = [ShardState::Held(Slot(0)), ShardState::Releasing(Slot(17)), ShardState::Unassigned];
    for (shard, owner) in (0..number_of_shards).zip(owners.into_iter().cycle()) {
        state.set_shard(ShardId(shard), ShardRecord { epoch: Epoch(manager::TERM + u64::from(shard)), state: owner });
    }
    for at in 0..5 {
        state.retire(
            &format!("e{at}").parse().unwrap(),
            Incarnation(100 + at),
            if at % 2 == 0 { End::Over } else { End::Superseded },
        );
    }
    state
}

fn codec() -> Seeds {
    let number = |kind| match kind {
        Kind::Meta => 0,
        Kind::Executors => 1,
        Kind::Shards => 2,
        Kind::Retirees => 3,
    };
    let mut made = Seeds::new();
    let whole = state(20);
    let (mut sealed, mut paused, mut importing) = (state(20), state(2), state(1));
    sealed.meta.seal = Seal::Sealed { unix_ms: 9, by: "process 1".to_owned(), note: "a file".to_owned() };
    paused.meta.pause = Some(Box::new(Pause { until_unix_ms: 9, by: "me".to_owned(), reason: String::new() }));
    importing.meta.seal = Seal::Importing { document: 7 };
    for (name, state) in [("open", &whole), ("sealed", &sealed), ("paused", &paused), ("importing", &importing)] {
        let mut store = begin(8);
        let mut of_kind = Seeds::new();
        for (key, bytes) in codec::encode(&state.changes_since(None)).unwrap() {
            let (kind, page, format) = (number(key.kind), key.page as u16, bytes[5]);
            let record = |maker: Maker| maker.byte(format).short(page);
            store = record(store.byte(kind | 4)).chunk(&bytes[HEADER_LEN..]);
            let shards = state.meta.number_of_shards;
            let what = key.kind.name();
            of_kind.entry(format!("{what}-{name}-raw")).or_insert_with(|| record(begin(kind)).word(shards).rest(&bytes).0);
            let body = || record(begin(kind | 4)).word(shards).rest(&bytes[HEADER_LEN..]).0;
            of_kind.entry(format!("{what}-{name}-body")).or_insert_with(body);
        }
        made.extend(of_kind.into_iter().filter(|(seed, _)| name == "open" || seed.starts_with("meta")));
        made.insert(format!("store-{name}"), store.0);
    }
    made
}

fn document() -> Seeds {
    let mut state = state(6);
    state.meta.pause = Some(Box::new(Pause { until_unix_ms: 9, by: "me".to_owned(), reason: "why".to_owned() }));
    let sealed = Content::of(&state, Taken::Sealed { unix_ms: 1, by: "b".to_owned(), from: "etcd".to_owned() });
    let copy = Taken::Copy { unix_ms: 1, by: "b".to_owned(), from: "etcd".to_owned(), of: ClusterId(uuid(8)) };
    let copy = Content::of(&state, copy);
    let mut text = Vec::new();
    Document::new(sealed.clone()).write(&mut text).unwrap();
    let json = |content: &Content| serde_json::to_vec(content).unwrap();
    let executor = |maker: Maker, id, incarnation: u64| {
        maker.byte(id).long(incarnation).chunk(b"http://h:1").short(1).byte(0).byte(0).byte(0)
    };
    // A cluster, how it was taken, shards, term, lease, no pause; executors; retired; owners and epochs.
    let numbers = begin(2).byte(7).byte(1).short(8).long(5).long(10_000).byte(0).byte(2);
    let numbers = executor(executor(numbers, 0, 5), 1, 6).byte(1).byte(0).long(64).long(9).rest(&[1, 7, 3, 5, 9, 2, 0, 0, 0]);
    seeds([
        ("text", begin(0).rest(&text)),
        ("content-sealed", begin(1).rest(&json(&sealed))),
        ("content-copy", begin(1).rest(&json(&copy))),
        ("numbers", numbers),
    ])
}

fn journal() -> Seeds {
    let line = |at: u64, event: &str, executor: &str, incarnation: u64| {
        format!("{{\"at_ns\":{at},{event},\"executor\":\"{executor}\",\"incarnation\":{incarnation}}}\n")
    };
    let lease = |until: u64| format!("\"event\":\"lease\",\"until_ns\":{until}");
    let shard = |event: &str, epoch: u64| format!("\"event\":\"{event}\",\"shard\":0,\"epoch\":{epoch}");
    let a = [line(1, &lease(90), "a", 5), line(2, &shard("start", 3), "a", 5), line(50, &shard("stop", 3), "a", 5)].concat();
    let b = [line(40, &lease(99), "b", 6), line(60, &shard("start", 4), "b", 6), line(99, &shard("fenced", 4), "b", 6)].concat();
    let overlap = b.replace("\"at_ns\":60", "\"at_ns\":41");
    let restarted = a.replace("\"incarnation\":5", "\"incarnation\":7");
    let with = |text: &str| begin(2).long(5).rest(text.as_bytes());
    seeds([
        ("handoff", with(&format!("{a}\0{b}"))),
        ("overlap", with(&format!("{a}\0{overlap}"))),
        ("restarted", with(&format!("{a}{restarted}"))),
        ("cut", with(&a[..a.len() - 9])),
    ])
}

fn cell() -> Seeds {
    let word = |number: u64| number.to_ne_bytes();
    let mut content = vec![0; 400];
    content[..8].copy_from_slice(b"shardldr");
    content[8..16].copy_from_slice(&word(1));
    let vacant = content.clone();
    // Process 1 under term 3, of another boot, with a heartbeat and ticks.
    content[64..72].copy_from_slice(&word((1 << 42) | 3));
    content[128..136].copy_from_slice(&word((3 << 40) | 9));
    content[192..200].copy_from_slice(&word((3 << 40) | 4));
    content[256..264].copy_from_slice(&word(40));
    let held = content.clone();
    content[64..72].copy_from_slice(&word((1 << 42) | ((1 << 42) - 1)));
    let how = |how: u8, content: &[u8]| begin(how).byte(3).short(0).rest(content);
    seeds([
        ("new", how(0, &[])),
        ("vacant", how(1, &vacant)),
        ("held", how(5, &held)),
        ("last-term", how(1, &content)),
        ("cut", how(0, &held)),
        ("half-made", how(0, &[0; 12])),
    ])
}

fn config() -> Seeds {
    let shipped = include_str!("../../config/shard-manager.toml");
    // Comments tell a fuzzer nothing.
    let lines =
        shipped.lines().map(str::trim).filter(|line| !line.is_empty() && (!line.starts_with('#') || line.contains(" = ")));
    let shipped: String = lines.map(|line| format!("{}\n", line.trim_start_matches("# "))).collect();
    let layers = "number_of_shards = 8\n[grpc]\nlisten = \"127.0.0.1:1\"\n[persistence]\ntype = \"etcd\"\n\
        [persistence.etcd]\nendpoints = [\"http://h:1\", \"http://h:2\"]\n\
        \0HTTP__LISTEN=127.0.0.1:2\0PERSISTENCE__ETCD__USERNAME=me\0PERSISTENCE__ETCD__PASSWORD=x\0 SHARD_MANAGER_HTTP__LISTEN=x\
        \0-executors.lease_ttl=20s\0-executors.calm_time = 0s\0-persistence.etcd.endpoints=http://h:1,http://h:2";
    let postgres =
        "[persistence]\ntype = \"postgres\"\n\0PERSISTENCE__POSTGRES__URL=x\0-log.filter=info,a=debug\0-rebalance_threshold=0.5";
    let text = |text: &str| Maker::default().rest(text.as_bytes());
    seeds([("shipped", text(&shipped)), ("layers", text(layers)), ("postgres", text(postgres))])
}

fn version(term: u64, revision: u64) -> Option<rpc::Version> {
    Some(rpc::Version { term, revision })
}

fn step(maker: Maker, what: u8, message: &impl Message) -> Maker {
    maker.byte(what).chunk(&message.encode_to_vec())
}

fn client() -> Seeds {
    let cluster_id = uuid(client::CLUSTER).to_string();
    let holdings = |shards: &[u32], epoch: u64| rpc::Holdings { shards: shards.to_vec(), epochs: vec![epoch; shards.len()] };
    let answer = |revision, assignment| rpc::LeaseAnswer {
        cluster_id: cluster_id.clone(),
        version: version(9, revision),
        number_of_shards: client::SHARDS,
        lease_ttl_ms: 5000,
        assignment,
        claim_wanted: false,
    };
    let command = |revision, shards: &[u32]| rpc::ApplyAssignmentRequest {
        cluster_id: cluster_id.clone(),
        version: version(9, revision),
        executor_id: client::ID.to_owned(),
        incarnation: client::INCARNATION,
        assignment: Some(holdings(shards, 9)),
        wait_ms: 100,
    };
    let joined = step(begin(0), 1, &answer(1, Some(holdings(&[0, 3], 9))));
    let life = step(joined, 2, &command(2, &[3, 4])).byte(6).byte(0).byte(5).short(1000).byte(7).byte(3).word(12);
    let life = step(life.byte(0), 1, &answer(3, None)).byte(5).short(9000).byte(9).byte(0).byte(0);

    let owner = |id: &str| rpc::Owner { executor_id: id.to_owned(), incarnation: 5, endpoint: format!("http://{id}:1") };
    let full = |cluster: u128, term| rpc::WatchRoutingTableResponse {
        change: Some(Change::Full(rpc::RoutingTable {
            cluster_id: uuid(cluster).to_string(),
            version: version(term, 7),
            number_of_shards: 3,
            owners: vec![owner("a"), owner("b")],
            owner: vec![0, 1, NOBODY],
            epochs: vec![4, 5, 0],
            releasing: vec![1],
        })),
    };
    let delta = rpc::RoutingTableDelta {
        from_revision: 7,
        version: version(3, 9),
        owners: vec![owner("c")],
        shards: vec![1, 2],
        owner: vec![NOBODY, 0],
        epochs: vec![5, 6],
        releasing: vec![2],
    };
    let delta = rpc::WatchRoutingTableResponse { change: Some(Change::Delta(delta)) };
    let told = |maker: Maker, message: &rpc::WatchRoutingTableResponse| maker.byte(4).byte(1).chunk(&message.encode_to_vec());
    let tables = told(told(told(told(Maker::default(), &full(7, 3)), &delta), &full(8, 1)), &full(7, 4));

    let owner = Owner { id: "b".parse().unwrap(), incarnation: Incarnation(6), endpoint: "http://b:1".to_owned() };
    let current = Some(Route { shard: ShardId(0), epoch: Epoch(90), owner: Arc::new(owner) });
    // The reasons come out of a hash map of one entry, or none: their bytes are the same each time.
    let refused = tonic::Status::from(NotOwner { shard: ShardId(0), current: None });
    drop(tonic::Status::from(NotOwner { shard: ShardId(0), current }));
    let superseded = rpc::refusal(tonic::Code::FailedPrecondition, rpc::reason::SUPERSEDED, "", &[]);
    let refusals = told(Maker::default(), &full(7, 3)).byte(3).byte(9).chunk(refused.details());
    let refusals =
        step(refusals.byte(0), 1, &answer(1, Some(holdings(&[0, 3], 9)))).byte(0).byte(3).byte(9).chunk(superseded.details());

    let applied = rpc::ApplyAssignmentResponse { mark: version(9, 3), held: Some(holdings(&[0, 1], 9)) };
    let applied = begin(8).byte(2).chunk(&applied.encode_to_vec());
    seeds([("life", life), ("tables", tables), ("refusals", refusals), ("applied", applied)])
}

fn manager() -> Seeds {
    let cluster_id = uuid(manager::CLUSTER).to_string();
    let register = |id: &str, incarnation, endpoint: &str| rpc::RegisterRequest {
        executor_id: id.to_owned(),
        incarnation,
        endpoint: endpoint.to_owned(),
        weight: 1,
        cluster_id: cluster_id.clone(),
        mark: version(manager::TERM, 1),
    };
    let renew = |id: &str, incarnation, shards: &[u32], leaving| rpc::RenewLeaseRequest {
        executor_id: id.to_owned(),
        incarnation,
        cluster_id: cluster_id.clone(),
        mark: version(manager::TERM, 3),
        claim: Some(rpc::renew_lease_request::Claim::Held(rpc::Holdings {
            shards: shards.to_vec(),
            epochs: vec![manager::TERM; shards.len()],
        })),
        leaving,
        storage_epochs: None,
    };
    let change =
        |id: &str| rpc::ChangeExecutorRequest { executor_id: id.to_owned(), asked_by: "me".to_owned(), reason: "why".to_owned() };
    let joined = |shards: u8| {
        let one = step(begin(shards), 0, &register("a", 5, "10.0.0.1:1"));
        step(one, 0, &register("b", 6, "http://h:2")).byte(20).byte(5)
    };
    let obeyed = |maker: Maker| maker.byte(19).byte(0).byte(19).byte(1);

    let life = step(obeyed(joined(1)), 1, &renew("a", 5, &[0, 1, 2, 3], false)).byte(20).byte(9);
    let life = step(life, 1, &renew("b", 6, &[4, 5], true)).byte(20).byte(3);
    let gone = rpc::DeregisterRequest { executor_id: "b".to_owned(), incarnation: 6, cluster_id: cluster_id.clone() };
    let life = step(life, 2, &gone).byte(20).byte(31).byte(25);

    let known = rpc::GetRoutingTableRequest { cluster_id: cluster_id.clone(), known: version(manager::TERM, 2) };
    let watched = rpc::WatchRoutingTableRequest { cluster_id: cluster_id.clone(), known: version(manager::TERM, 2) };
    let higher = rpc::GetRoutingTableRequest { cluster_id: cluster_id.clone(), known: version(manager::TERM + 9, 2) };
    let readers = step(step(step(joined(2), 3, &known), 4, &watched), 3, &higher);
    let readers = step(readers, 4, &rpc::WatchRoutingTableRequest::default());

    let admin = step(step(obeyed(joined(2)), 7, &change("a")), 8, &change("b"));
    let admin = step(step(admin, 9, &change("a")), 9, &change("b"));
    let remove =
        rpc::RemoveExecutorRequest { executor_id: "b".to_owned(), dead: true, asked_by: "me".to_owned(), reason: String::new() };
    let admin = step(step(admin, 10, &remove).byte(20).byte(3), 11, &change("b"));
    let moves = rpc::MoveShardsRequest {
        shards: vec![0, 1],
        to_executor_id: "a".to_owned(),
        asked_by: "me".to_owned(),
        reason: String::new(),
    };
    let admin = step(admin, 12, &moves);
    let pause = rpc::PauseRebalancingRequest { length_ms: 60_000, asked_by: "me".to_owned(), reason: "why".to_owned() };
    let admin =
        step(step(admin, 15, &pause), 16, &rpc::ResumeRebalancingRequest { asked_by: "me".to_owned(), reason: String::new() });
    let admin = step(admin, 17, &rpc::StepDownRequest { asked_by: "me".to_owned(), reason: "why".to_owned() });

    let join = vec![rpc::NewExecutor { executor_id: "c".to_owned(), weight: 2 }];
    let plan = rpc::PlanChangeRequest { join, leave: vec!["a".to_owned()], drain: vec!["b".to_owned()] };
    let questions = step(step(joined(2), 13, &plan), 14, &rpc::ExplainShardRequest { shard: 3 });
    let questions = step(step(questions, 5, &rpc::GetStatusRequest {}), 6, &rpc::ListExecutorsRequest {});

    let applied = rpc::ApplyAssignmentResponse {
        mark: version(manager::TERM + 1, 9),
        held: Some(rpc::Holdings { shards: vec![0, 1], epochs: vec![manager::TERM + 5; 2] }),
    };
    let store = joined(3).byte(21);
    let store = step(store, 7, &change("a")).byte(23).byte(20).byte(3).byte(22).byte(18).byte(0).chunk(&applied.encode_to_vec());
    let store = store.byte(24).byte(0).byte(24).byte(129).byte(20).byte(20).byte(22);

    let long = format!("{}:1", "h".repeat(509));
    let endpoints = step(step(begin(0), 0, &register("a", 5, &long)), 0, &register("b", 6, "[::1]:0080")).byte(20).byte(2);
    seeds([
        ("life", life),
        ("readers", readers),
        ("admin", admin),
        ("questions", questions),
        ("slow-store", store),
        ("endpoints", endpoints),
    ])
}

fn answers() -> Seeds {
    let (cluster_id, version) = (uuid(manager::CLUSTER).to_string(), version(manager::TERM, 9));
    let owner = |id: &str| rpc::Owner { executor_id: id.to_owned(), incarnation: 5, endpoint: format!("http://{id}:1") };
    let answer = |which: u8, message: Vec<u8>| begin(which).long(manager::TERM).rest(&message);
    let table = rpc::RoutingTable {
        cluster_id: cluster_id.clone(),
        version,
        number_of_shards: 4,
        owners: vec![owner("a"), owner("b")],
        owner: vec![0, 1, 1, NOBODY],
        epochs: vec![4, 5, 6, 0],
        releasing: vec![1],
    };
    let planned = |id: &str, before, after| rpc::PlannedExecutor {
        executor_id: id.to_owned(),
        shards_before: before,
        shards_after: after,
        lower_bound: 1,
        upper_bound: 3,
    };
    let plan = rpc::PlanChangeResponse {
        version,
        executors: vec![planned("a", 3, 2), planned("b", 0, 2)],
        shards: vec![1, 2, 9, u32::MAX - 1, u32::MAX],
        from: vec![0, 0, NOBODY, NOBODY, NOBODY],
        to: vec![1; 5],
        notes: vec!["9 stays".to_owned()],
        placed: 3,
        evacuated: 0,
        balance: 2,
        unplaced: 1,
    };
    let explanation = rpc::ExplainShardResponse {
        version,
        shard: 3,
        state: "releasing".to_owned(),
        epoch: 7,
        owner: Some(owner("a")),
        since_ms: manager::TERM - 5000,
        history: vec!["granted to a".to_owned()],
        waits_for: vec!["a to stop it".to_owned()],
        destination: "b".to_owned(),
    };
    let status = rpc::GetStatusResponse {
        role: "leader".to_owned(),
        cluster_id,
        version,
        number_of_shards: 4,
        violations: vec!["shard 3".to_owned()],
        lease_ttl_ms: 1500,
        leader_since: manager::TERM / 1000 - 5,
        leader: "process 1 on a".to_owned(),
        rebalancing_paused_until_ms: manager::TERM,
        ..rpc::GetStatusResponse::default()
    };
    let executor = |id: &str| rpc::Executor {
        id: id.to_owned(),
        incarnation: 5,
        endpoint: format!("http://{id}:1"),
        state: "active".to_owned(),
        lease_remaining_ms: 29_876,
        ..rpc::Executor::default()
    };
    let executors = rpc::ListExecutorsResponse { version, executors: vec![executor("a"), executor("b")] };
    seeds([
        ("table", answer(0, table.encode_to_vec())),
        ("plan", answer(1, plan.encode_to_vec())),
        ("explanation", answer(2, explanation.encode_to_vec())),
        ("status", answer(3, status.encode_to_vec())),
        ("executors", answer(4, executors.encode_to_vec())),
    ])
}
