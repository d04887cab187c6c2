"""Secrets in settings, commands and errors are hidden in everything that is written for reading or shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from analysis import report
from analysis.reading import read_runs
from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.train import make_folder
from holmes_hpc.planner import plan
from holmes_hpc.program import report as report_error
from holmes_hpc.redaction import HIDDEN, is_secret, redact, redact_value
from holmes_hpc.runs import Start, add_note, write_job, write_result

MARK = "s3cr3tV4lu3"
LONG = f"{MARK}0123456789abcdef0123456789"
JWT = f"eyJhbGciOiJIUzI1NiJ9.{MARK}.{MARK}"
FORMS = {
    "export of a token": f"export HF_TOKEN={MARK}",
    "quoted with blanks": f"export WANDB_API_KEY='{MARK} {MARK}'",
    "double quotes": f'export DB_PASSWORD="a\\"{MARK} b{MARK}"',
    "quotes in a row": f"export DB_PASSWD='a '\"{MARK}\"' {MARK}'",
    "personal access token": f"GITLAB_PAT={MARK} git pull",
    "option of sbatch": f"--export=HF_TOKEN={MARK}",
    "among others": f"--export=ALL,HF_TOKEN={MARK},AWS_SECRET_ACCESS_KEY={MARK}",
    "option and word": f"tool --token {MARK} --rank 3",
    "option with =": f"tool --api-key={MARK}",
    "password with a comma": f"login_tool --password {MARK},{MARK}",
    "bearer": f"curl -H 'Authorization: Bearer {MARK}' https://host",
    "basic": f"curl -H 'Authorization: Basic {MARK}' https://host",
    "header of a token": f"curl -H 'PRIVATE-TOKEN: {MARK}' https://host",
    "login of wandb": f"wandb login {MARK}",
    "login of wandb with options": f"wandb login --relogin {MARK}",
    "login of docker": f"docker login -u me -p {MARK} registry",
    "login of hugging face": f"huggingface-cli login --token {MARK}",
    "user and password": f"curl -u me:{MARK} https://host",
    "login in an address": f"git clone https://me:{MARK}@host/x",
    "login with an at": f"pip install -i https://me:{MARK}@{MARK}@host/simple x",
    "query": f"wget 'https://host/x?sig={MARK}&token={MARK}'",
    "github": f"echo ghp_{MARK}0123456789abcdefghij",
    "github, fine": f"echo github_pat_{MARK}0123456789abcdefghij",
    "gitlab": f"echo glpat-{MARK}0123456789",
    "hugging face": f"echo hf_{MARK}0123456789abcdef",
    "amazon": "echo AKIA" + MARK.upper()[:8] + "01234567",
    "web token": f"echo {JWT}",
    "a key under any name": f"export WANDB={LONG}",
    "private key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{MARK}\n{MARK}\n-----END OPENSSH PRIVATE KEY-----\necho done",
    "private key cut off": f"-----BEGIN PRIVATE KEY-----\n{MARK}",
    "netrc": f"echo machine api.wandb.ai login user password {MARK} > ~/.netrc",
    "setenv": f"setenv HF_TOKEN {MARK}",
    "set of fish": f"set -gx HF_TOKEN {MARK}",
    "set by a program": f"aws configure set aws_secret_access_key {MARK}",
    "piped to a login": f"echo {MARK} | docker login -u me --password-stdin",
    "piped to a program": f"printf '%s' {MARK} | passwd --stdin me",
    "written to a file of secrets": f"printf '{MARK}' > ~/.netrc",
    "told by a substitution": f"export WANDB_API_KEY=$(echo {MARK})",
    "told by backticks": f"export WANDB_API_KEY=`echo {MARK} {MARK}`",
    "a key told to any name": f"export WANDB=$(echo {LONG})",
    "password behind its option": f"mysql -p{MARK} db",
    "in words": f"api key: {MARK}",
    "with blanks around": f"HF_TOKEN = {MARK}",
    "a default": f"HF_TOKEN:={MARK} DB_PASSWORD:-{MARK}",
    "a line that goes on": f"export HF_TOKEN=a\\\n{MARK}",
    "here string": f"read -r HF_TOKEN <<< {MARK}",
    "here document": f"cat > ~/.netrc <<EOF\nmachine h login me\npassword {MARK}\nEOF",
    "set of another shell": f"setx HF_TOKEN {MARK}",
    "login of vault": f"vault login {MARK}",
    "credentials of a registry": f"skopeo copy --src-creds me:{MARK} docker://host/image",
    "words of rclone": f"rclone config create x s3 secret_access_key {MARK}",
    "json": f'{{"hf_token": "{MARK}", "x": 1}}',
    "yaml": f"  password: {MARK}",
}
FORMS |= {line: line.replace("{}", MARK) for line in (
    "mysql -u root -p{} db", "mysqldump -uroot -p{}", "mariadb-dump --host h -p{}", "7z x -p{} a.7z",
    "openssl enc -aes-256-cbc -k {} -in x", "openssl enc -K {} -iv 0", "openssl rsa -passin pass:{} -in k",
    "openssl pkcs12 -passout pass:{}", "openssl enc -pass pass:{}", "openssl pkcs12 -password pass:{}",
    "curl -u me:{} https://h", "curl -uuser:{} https://h", "curl --user=user:{} https://h",
    "curl --proxy-user me:{} https://h", "curl -x http://me:{}@proxy:3128 https://h", "curl -b session={} h",
    "curl -H 'X-Auth: {}' h", "curl -d 'password={}' h", "redis-cli -a {}", "ldapsearch -x -D cn=x -w {}",
    "mongo -u me -p {}", "sshpass -p{} ssh h", "SSHPASS={} sshpass -e ssh h", "smbclient -U me%{} //h/s",
    "htpasswd -bc f me {}", "unzip -P {} a.zip", "ssh-keygen -P {} -N {} -f k", "snmpget -A {} -X {}",
    "lftp -u me,{} h", "xfreerdp /u:me /p:{}", "freerdp /password:{}", "sqlplus me/{}@db", "sqlcmd -U u -P {}",
    "mosquitto_pub -u me -P {}", "mc alias set my https://h ME {}", "rclone config create x sftp pass {}",
    "kaggle config set -n key -v {}", "vault kv put secret/x value={}", "gh secret set X --body {}",
    "kubectl create secret generic x --from-literal=a={}", "docker login -u me -p={} r",
    "echo {} | gpg --passphrase-fd 0 -d x", "echo '{}' | sudo -S ls", "echo {} | kinit me", "expect -c 'send {}'",
    "from huggingface_hub import login; login('{}')", "wandb.login(key='{}')",
    "os.environ['WANDB_API_KEY'] = '{}'", 'import os; os.environ["HF_TOKEN"]="{}"', r'"{{\"token\": \"{}\"}}"',
    "{'token': '{}'}", '{"access_token":"{}","n":1}', "  password : {}", "password:{}", "token:{}", "PASSWORD = {}",
    "login failed with password: {}", "ENV HF_TOKEN {}", "https://hooks.slack.com/services/T0/B0/{}",
    "https://h/api/webhooks/1/{}", "https://api.telegram.org/bot12:{}/send", "scp user:{}@host x", "privateKey={}",
    "apiKey: {}", "PIN={}", "--otp {}", "HMAC={}", "SESSION_ID={}", "PGPASS={}", "Server=h;Uid=u;Pwd={};",
    "AccountName=a;AccountKey={};", "//registry.npmjs.org/:_authToken={}", "--export=ALL,HF_TOKEN={}",
    "mount -t cifs -o user=u,pass={} //h /m", "plink -pw {} h", "az login --service-principal -u a -p {}",
    "net use Z: //h/s /user:me {}", "net use Z: //h/s {} /user:me", "the password is {}1a2b3c4d",
    "my token is: {}1a2b3c4d", "passwd {}1a2b3c4d", "HF_TOKEN {}1a2b3c4d", "HF_TOKEN => {}", "API_KEY->{}",
    'os.environ.setdefault("HF_TOKEN", "{}")', "os.putenv('HF_TOKEN','{}')", "<password>{}</password>",
    '<add key="Password" value="{}"/>', "IDENTIFIED BY '{}'", "ALTER USER me WITH PASSWORD '{}'",
    "HF_TOKEN=a$(echo {})", "rsync --password-file=<(echo {})", "rar x -p{} a", "unrar x -hp{} a",
    "keytool -storepass {} -keypass {}", "smbclient //h/s {} -U me", "snmpget -c {} h", "http -a me:{} h",
    "beeline -n me -p {}", "useradd -p {} me", "echo me:{} | chpasswd", "tailscale up --authkey {}",
    "ngrok config add-authtoken {}", "heroku auth:token {}", "flyctl auth login -t {}", "PHPSESSID={}",
    "SharedAccessSignature={}", "requirepass {}", "PASS {}", "X=1234567:AA{}0123456789abcdefghijABCDEFGHIJ01",
    "the password is {}", "impala -p {}", "impala-shell -l -u me -p {}", "psexec -u me -p {} cmd", "tool /p:{}",
    "cmdkey /add:h /user:me /pass:{}", "schtasks /create /u me /rp {}", "wmic /user:me /password:{} os",
    "run glrt-{}0123456789", "run gsk_{}0123456789", "run xapp-1-{}0123456789")}


@pytest.mark.parametrize("form", FORMS)
def test_secrets_are_hidden_and_the_rest_is_left(form: str) -> None:
    text = redact(FORMS[form])
    assert MARK not in text and MARK.upper()[:8] not in text, text
    assert HIDDEN in text
    assert redact(text) == text, "once is enough"


@pytest.mark.parametrize("text", [
    "module load cuda/12.4", "export CUDA_HOME=/apps/cuda", "export OMP_NUM_THREADS=8",
    "srun --ntasks=4 --partition gpu",
    "tokens=8192", "data.tokenizer=t.json", "data.special_tokens=text", "model.num_kv_heads=4", "on a login node",
    "ssh login node7", "train.resume=runs/mixed/20261201-010256-0kkm", "cache: runs/token_cache", "keys_per_group",
    "num_key_value_heads=5",
    "commit 0123456789abcdef0123456789abcdef01234567", "https://docs.wandb.ai/ref?x=1", "the key of a rank",
    "Overrides are written key=value; a value", "echo done | tee log", "echo starting > out.log", "set -e",
    "set -o pipefail",
    "export X=$(cat ~/.wandb-key)", "export TOKENIZERS_PARALLELISM=$(nproc)", "the api key of wandb", "mkdir -p runs/x",
    "git config set user.name me", "KeyError: 'layers'", "docker run -p 8080:80 image", "rsync -a x me@host:/data",
    "image:1.2@sha256:0123", "mkdir -p a && tar -k b", "ssh -p 2222 h", "num_keys: 4", "pin_memory=true", "bypass=true",
    "HF_TOKEN is not set", "the token 50257 is none", "the password is wrong", "for each in ('query', 'key', 'value')",
    "the secret of this run", "ranks -> nodes", "PASSED 3 tests", "net user 3",
    "export PATH=/a/b1:/c/d2:$PATH", "NCCL_IB_HCA=mlx5_0,mlx5_1", "step_seconds: 0.27",
])
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(("text", "shown"), [
    ("the password is hunter", "the password is ***"),
    ("The passphrase was swordfish, so", "The passphrase was ***, so"),
    ("my passwd is: hunter.", "my passwd is: ***"), ("his pin is 4711", "his pin is ***"),
    ("rdesktop /u:me /p:hunter h", "rdesktop /u:me /p:*** h"), ("impala -p hunter -i h", "impala -p *** -i h"),
    ("clickhouse-client -p hunter", "clickhouse-client -p ***")])
def test_a_secret_without_digits_is_hidden_where_it_is_told_as_one(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize("text", [
    "the password is not asked for", "the password is read from a file", "the passphrase was forgotten",
    "a password is one secret of many", "the password is hidden", "the password is too short", "its password is known",
    "a password is required", "the pin is soldered", "a page /p: see there", "msbuild /p:Configuration=Release",
    "the password is the same as before", "where the password is missing"])
def test_what_is_said_of_a_password_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("part", [
    "a", "a-", "A=", "a: ", "eyJ", "://", "echo ", "a.b-c", "TOKEN=", "set -x ", "--token ", "x-token: ", "-u a:",
    "wandb login ", "mysql -p", "mysql ", "docker login", "a:b@", "password:", "openssl -k a ", '\\"token', "user ",
    "-----BEGIN PRIVATE KEY"])
def test_texts_without_an_end_are_looked_through_in_time(part: str) -> None:
    """An error may quote megabytes; a rank that looks through its own for minutes says nothing. CPU time is counted."""
    began = time.process_time()
    text = redact(part * 100_000 + f"\nexport HF_TOKEN={MARK}\n")
    assert time.process_time() - began < 10
    assert MARK not in text and len(text) < 20_000


def test_the_end_of_a_line_that_is_too_long_is_left_out_and_lines_after_it_stay() -> None:
    text = redact("x " * 10_000 + "\nan end")
    assert text.startswith("x x ") and text.endswith("characters left out)\nan end")
    assert redact("x " * 4000) == "x " * 4000


def test_values_are_hidden_by_the_names_of_their_keys_and_of_the_option_before() -> None:
    value = {"api_key": MARK, "n": {"Password": 5, "on": True, "tokenizer": "t"},
             "words": ["--token", MARK, "--rank", "3"], "mysql": ["mysql", "-u", "root", f"-p{MARK}"],
             "curl": ["curl", "-u", f"me:{MARK}", "-s", "h"], "smb": ["smbclient", "-U", f"me%{MARK}"],
             "ssl": ["openssl", "-k", MARK, "-in", "x"], "list": [f"export A_TOKEN={MARK}", 1.5, None]}
    assert redact_value(value) == {
        "api_key": HIDDEN, "n": {"Password": HIDDEN, "on": True, "tokenizer": "t"},
        "words": ["--token", HIDDEN, "--rank", "3"], "mysql": ["mysql", "-u", "root", f"-p{HIDDEN}"],
        "curl": ["curl", "-u", HIDDEN, "-s", "h"], "smb": ["smbclient", "-U", f"me%{HIDDEN}"],
        "ssl": ["openssl", "-k", HIDDEN, "-in", "x"], "list": [f"export A_TOKEN={HIDDEN}", 1.5, None]}


def test_lists_and_mappings_under_a_secrets_name_are_hidden_to_the_last_value() -> None:
    value = {"API_KEYS": [MARK, 5, None], "credentials": {"user": MARK, "on": True, "of": [{"x": MARK}]}, "keys": []}
    assert redact_value({"env": value}) == {"env": {
        "API_KEYS": [HIDDEN, HIDDEN, None], "credentials": {"user": HIDDEN, "on": True, "of": [{"x": HIDDEN}]},
        "keys": []}}


def test_no_setting_of_ours_is_taken_for_a_secret() -> None:
    config = OmegaConf.to_container(compose(["+cluster=mixed"]))
    assert redact_value(config) == config
    assert is_secret("HF_TOKEN") and is_secret("--access-key") and not is_secret("path") and not is_secret("monkey")


def test_nothing_of_a_run_shows_a_secret_but_the_settings_that_its_ranks_read(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All forms stand in the settings, the command, an error and a note; every file and page is searched."""
    monkeypatch.chdir(tmp_path)
    lines = list(FORMS.values())
    config = compose(["+cluster=laptop", f"run.folder={tmp_path / 'runs'}"])
    OmegaConf.update(config, "launch.setup", lines)
    sbatch = {"export": f"ALL,HF_TOKEN={MARK}", "comment": f"token={MARK}"}
    OmegaConf.update(config, "launch.sbatch", sbatch, force_add=True)
    OmegaConf.update(config, "launch.srun_args", ["--token", MARK])
    folder = make_folder(config, plan(config, mode="local"), "local")
    (folder.path / "job.json").unlink()
    write_job(folder, command=["train", *lines], environment={"SLURM_X": f"HF_TOKEN={MARK}", "SLURM_JWT": MARK})
    for line in lines:
        add_note(folder, line)
    error = ConfigurationError("\n".join(lines))
    Start(folder, "1-0-0").write_failure(0, "n1", error)
    write_result(folder, "failed", error=str(error), emulated=False)
    (folder.path / "report.html").write_text(report.page(read_runs(folder.path)))
    report_error("train", error)
    found = {path.name: path.read_text() for path in folder.path.rglob("*") if path.is_file()}
    assert len(found) >= 6 and {"job.json", "report.html", "result.json", "notes.log"} <= found.keys()
    assert MARK in found.pop("config.yaml"), "what the ranks read"
    for name, text in found.items():
        assert MARK not in text and MARK.upper()[:8] not in text, name
    assert MARK not in "".join(capsys.readouterr())
    assert json.loads(found["job.json"])["environment"] == {"SLURM_X": f"HF_TOKEN={HIDDEN}"}


def test_printed_settings_and_the_record_of_a_sweep_show_none(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setup = f"launch.setup=['wandb login {MARK}', 'export HF_TOKEN={MARK}']"
    assert cli.run(["train", "--cfg", "job", "+cluster=laptop", setup]) == 0
    printed = capsys.readouterr()
    assert "wandb login ***" in printed.out and MARK not in printed.out + printed.err
    assert cli.run(["plan", "-m", "+cluster=laptop", "train.steps=1,2", setup]) == 0
    assert MARK not in "".join(capsys.readouterr())
    record = next(tmp_path.rglob("multirun.yaml"))
    assert "launch.setup" in record.read_text() and MARK not in record.read_text()
    assert record.parent.stat().st_mode & 0o077 == 0
